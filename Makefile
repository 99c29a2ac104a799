# Everything runs from .venv, which `make setup` makes from requirements.lock and nothing else.
# On a machine without make, compiler or libfuse3 start with `sh .ci/bootstrap demo` instead.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Paths of one pytest run, so that `make test` closes with one summary line.
SUITES := tests

.PHONY: setup demo test notebooks lab test-fs crash simulate bench bench-journal bench-map extension check format lock clean

setup: $(STAMP)

# What is run in place installs no shared files of a wheel: JupyterLab finds its extension by a link.
LABEXTENSIONS := share/jupyter/labextensions/@branchkit
VIEWER := extensions/journal-viewer

# Rebuilt when the interpreter it was made with has gone. The two variables pin what pyfuse3 is
# compiled with too: pip below 25.3 reads the first, from 26.2 on only the second.
$(STAMP): requirements.lock pyproject.toml
	$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear .venv
	PIP_CONSTRAINT=requirements.lock PIP_BUILD_CONSTRAINT=requirements.lock \
		$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	mkdir -p .venv/$(LABEXTENSIONS)
	ln -sfn $(CURDIR)/$(VIEWER)/labextension .venv/$(LABEXTENSIONS)/journal-viewer
	touch $@

# The sample from question to verdict, then the quick start headless; the reports are in demo-out.
demo: setup
	$(BIN)/branchkit demo --out demo-out
	CI=1 BRANCHKIT_STORE=$(CURDIR)/.branchkit $(BIN)/jupyter nbconvert --log-level=WARN --execute \
		--to html --output-dir demo-out notebooks/tutorial/quickstart.ipynb

test: check notebooks
	$(BIN)/pytest $(SUITES)

# Regression notebooks compare their stored outputs; the tutorial has to run.
notebooks: setup
	$(BIN)/pytest -p no:cacheprovider --nbval notebooks/regression
	$(BIN)/pytest -p no:cacheprovider --nbval-lax notebooks/tutorial

# The quick start in a real JupyterLab and a real browser (also part of `make test`).
lab: setup
	$(BIN)/pytest tests/t7_lab

# The overlay alone, at the full length of what `make test` samples, and a campaign of random
# operations. As root and with PJD=CHECKOUT, a built checkout of pjdfstest, that suite runs in a
# branch too and has to pass in full.
test-fs: setup
	BRANCHKIT_TEST_FS=full $(BIN)/pytest tests/t3_workspace
	$(BIN)/python -m tests.t3_workspace.campaign
	$(if $(PJD),$(BIN)/python tests/t3_workspace/pjdfstest_suite.py $(PJD))

# Processes killed by the thousand (a sample is part of `make test`); the last line has the counts.
# Another layer of crashes is another line of LAYERS in crash.py.
crash: setup
	$(BIN)/python tests/t5_crash/crash.py

# The planted truths of the statistics at full length: 200,000 experiments a figure, each printed
# with its interval (`make test` has a hundredth of it).
simulate: setup
	$(BIN)/python tests/t5_divergence/simulate.py

# Writes docs/performance.md; as root, some twenty minutes, with nothing else running.
bench: setup
	$(BIN)/python tests/benchmarks/overlay.py --write docs/performance.md

# Writes docs/performance-journal.md, a file of 1 M events included; some twenty minutes.
bench-journal: setup
	$(BIN)/python tests/benchmarks/journal.py --large --write docs/performance-journal.md

# Writes docs/performance-map.md: a map of 1,000 branches in JupyterLab and Chromium; two minutes.
bench-map: setup
	$(BIN)/python tests/benchmarks/map.py --write docs/performance-map.md

# Rebuilds the JupyterLab extension after a change of its sources: needs Node.js >= 20 and npm, which
# nothing else here does. The bundle is committed.
extension: setup
	cd $(VIEWER) && npm ci --no-audit --no-fund
	cd $(VIEWER) && PATH=$(CURDIR)/$(BIN):$$PATH npm run build
	$(BIN)/python $(VIEWER)/sources.py > $(VIEWER)/labextension/sources.sha256

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	for each in tests/t*/conftest.py; do $(BIN)/mypy $$each || exit; done
	$(BIN)/pytest --quiet tests/test_arrows.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Resolves every extra anew. Only names, versions and markers are kept: which index they come from
# is the business of the machine that installs them. One version for every Python (fewest forks),
# so that a figure measured on one is comparable on another.
lock:
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/pip install --quiet --disable-pip-version-check uv
	build/lock/bin/uv pip compile --quiet --upgrade --universal --fork-strategy fewest \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links \
		--all-extras --group build --group weights -o build/lock/raw.txt pyproject.toml
	sed -E -e "s/ and sys_platform == 'linux'//" -e "s/ ; sys_platform == 'linux'$$//" \
		build/lock/raw.txt > requirements.lock

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
