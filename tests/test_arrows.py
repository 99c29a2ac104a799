"""The arrows of the architecture: every import in branchkit/ points left, heavy ones stay put.

Read the tables as the drawing: a unit (folder or top-level module) may import the units it lists,
those that they list, and itself. All imports count for that, also those inside functions and under
TYPE_CHECKING: what a lower floor needs from a higher one comes in as an argument.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "branchkit"

# unit -> what stands directly left of it
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "disk": {"errors"},
    "supervise": {"errors"},  # what a child does to outlive none of its own; started by process
    "process": {"disk", "supervise"},
    "arguments": {"errors"},  # what the command line takes
    "journal": {"process"},
    "record": {"journal"},
    "workspace": {"journal"},
    "imports": {"record"},  # an importer writes contexts down the way the record reads them
    "tiers": {"journal"},
    "divergence": {"journal"},
    "boundary": {"record", "workspace"},
    "harness": {"boundary"},
    "durable": {"harness"},
    "replay": {"durable", "divergence"},
    "branch": {"replay"},
    # Fakes that ship for users' tests: they may stand on what they fake, nothing stands on them.
    "testing": {"harness"},
    "notebook": {"branch", "imports", "tiers"},
    # What the command line does; `demo` writes the notebook's report.
    "verbs": {"branch", "imports", "tiers", "notebook"},
    "cli": {"arguments", "verbs"},
    # The public face: lazy, so it may name everything but its own commands.
    "__init__": {"branch", "imports", "tiers", "notebook", "testing"},
    "__main__": {"cli"},
}


class When(Enum):
    """When an import statement runs."""

    LOADING = "when the module loads"
    CALLED = "inside a function"
    TYPING = "for types only"


class Place(NamedTuple):
    """Where a heavy library may be imported; a name stands for itself and what is below it."""

    loading: tuple[str, ...] = ()
    called: tuple[str, ...] = ()


ANYWHERE = (PACKAGE,)
VIEWS = ("branchkit.notebook",)

HEAVY: dict[str, Place] = {
    "pyfuse3": Place(loading=("branchkit.workspace.fuse",)),
    "trio": Place(loading=("branchkit.workspace.fuse",), called=("branchkit.workspace",)),
    "scipy": Place(called=ANYWHERE),
    "statsmodels": Place(called=ANYWHERE),
    "pandas": Place(called=ANYWHERE),
    "numpy": Place(
        loading=("branchkit.notebook.map", "branchkit.notebook.charts"), called=ANYWHERE
    ),
    "git": Place(called=("branchkit.workspace", "branchkit.imports")),
    "anywidget": Place(loading=("branchkit.notebook.map",), called=VIEWS),
    "ipywidgets": Place(loading=("branchkit.notebook.map",), called=VIEWS),
    "matplotlib": Place(called=VIEWS),
    "plotly": Place(called=VIEWS),
    "xllamacpp": Place(called=("branchkit.harness",)),
    "duckdb": Place(called=("branchkit.tiers.cold",)),
    "psycopg": Place(called=("branchkit.tiers.warm",)),
    "rocksdict": Place(called=("branchkit.journal.rocks",)),
}

# Beside HEAVY: these cost less, but `import branchkit` needs none of them either.
NOT_AT_IMPORT = {*HEAVY, "IPython", "httpx2", "msgspec", "orjson", "rfc8785", "asyncio"}


class Found(NamedTuple):
    """One name that a module imports."""

    target: str
    line: int
    when: When


def may_import(unit: str) -> set[str]:
    """Every unit left of ``unit``, and itself."""
    reached, ahead = set[str](), [unit]
    while ahead:
        at = ahead.pop()
        if at not in reached:
            reached.add(at)
            ahead.extend(ARROWS[at])
    return reached


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """One line for each import in ``source`` that points right or is heavy in the wrong place."""
    unit = unit_of(module)
    if unit not in ARROWS:
        return [f"{module}: {unit!r} has no arrows; add it to the table and to the architecture"]
    allowed = may_import(unit)
    problems = []
    for found in imports_of(module, source, is_package):
        top, _, below = found.target.partition(".")
        if top == PACKAGE:
            target = below.partition(".")[0]
            # `from branchkit import __version__` and the like name the face, which is light.
            if target and target not in allowed:
                problems.append(f"{module}:{found.line}: {unit} may not import {found.target}")
        elif top in HEAVY and not heavy_is_allowed(module, HEAVY[top], found.when):
            problems.append(f"{module}:{found.line}: {top} is imported {found.when.value}")
    return problems


def unit_of(module: str) -> str:
    """The folder or top-level module that ``module`` belongs to; the package itself is __init__."""
    return [*module.split("."), "__init__"][1]


def heavy_is_allowed(module: str, place: Place, when: When) -> bool:
    """Whether ``module`` may import a library of ``place`` at that moment."""
    if when is When.TYPING:
        return True
    where = place.loading if when is When.LOADING else place.loading + place.called
    return any(module == name or module.startswith(f"{name}.") for name in where)


def imports_of(module: str, source: str, is_package: bool) -> Iterator[Found]:
    """Each imported name, absolute, with the moment of its import."""
    package = module if is_package else module.rpartition(".")[0]
    yield from _walk(ast.parse(source).body, package, When.LOADING)


def _walk(nodes: list[ast.AST] | list[ast.stmt], package: str, when: When) -> Iterator[Found]:
    for node in nodes:
        inner = when
        if isinstance(node, ast.Import):
            yield from (Found(alias.name, node.lineno, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from_import(node, package, when)
        elif isinstance(node, ast.Call):
            yield from _by_name(node, when)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inner = When.TYPING if when is When.TYPING else When.CALLED
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _walk(node.body, package, When.TYPING)
            yield from _walk(node.orelse, package, when)
            continue
        yield from _walk(list(ast.iter_child_nodes(node)), package, inner)


def _from_import(node: ast.ImportFrom, package: str, when: When) -> Iterator[Found]:
    base = node.module or ""
    if node.level:
        parent = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parent, base] if base else parent)
    # `from branchkit import disk` imports a unit; only units count, other names are the face's.
    for alias in node.names:
        unit = base == PACKAGE and alias.name in ARROWS
        yield Found(f"{base}.{alias.name}" if unit else base, node.lineno, when)


def _by_name(node: ast.Call, when: When) -> Iterator[Found]:
    called = ast.unparse(node.func).rpartition(".")[2]
    if called in {"import_module", "__import__"} and node.args:
        name = node.args[0]
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            yield Found(name.value, node.lineno, when)


def modules() -> list[tuple[str, Path]]:
    """Every module of the package with its file."""
    found = []
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


@pytest.mark.parametrize(("module", "path"), [pytest.param(m, p, id=m) for m, p in modules()])
def test_every_import_points_left(module: str, path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert violations(module, source, is_package=path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("branchkit.journal.file", "from branchkit.record import fold"),
        ("branchkit.journal.file", "import branchkit.record.fold"),
        ("branchkit.journal.file", "from ..record import fold"),
        ("branchkit.journal.file", "from .. import record"),
        ("branchkit.journal.file", "from branchkit import cli"),
        ("branchkit.journal.file", "def f():\n    from branchkit.harness import loop"),
        ("branchkit.record.fold", "if TYPE_CHECKING:\n    from branchkit.boundary import send"),
        ("branchkit.record.fold", "import importlib\nimportlib.import_module('branchkit.cli')"),
        ("branchkit.record.fold", "from branchkit.workspace import layers"),
        ("branchkit.divergence.align", "from branchkit.record import fold"),
        ("branchkit.harness.loop", "from branchkit.durable import settle"),
        ("branchkit.durable.drift", "from branchkit.divergence import align"),
        ("branchkit.branch.fork", "from branchkit.notebook import views"),
        ("branchkit.notebook.views", "from branchkit.cli import main"),
        ("branchkit.branch.fork", "from branchkit.testing import server"),
        ("branchkit.disk", "from branchkit.process import spawn"),
        ("branchkit.nowhere.file", "import os"),
        ("branchkit.workspace.mount", "def f():\n    import pyfuse3"),
        ("branchkit.divergence.tables", "import pandas as pd"),
        ("branchkit.divergence.tables", "class Table:\n    from pandas import DataFrame"),
        ("branchkit.divergence.tables", "try:\n    import scipy.stats\nexcept ImportError: ..."),
        ("branchkit", "import statsmodels.api"),
        ("branchkit.journal.file", "def f():\n    import plotly.graph_objects as go"),
    ],
)
def test_a_planted_import_is_found(module: str, source: str) -> None:
    """The proof that the test above can fail: one line for each plant, no more."""
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("branchkit.journal.file", "import os\nfrom branchkit import disk, __version__"),
        ("branchkit.journal.file", "from .chain import seal\nfrom ..errors import DiskFull"),
        ("branchkit.harness.loop", "from branchkit.record.fold import fold"),
        ("branchkit.harness.sandbox", "from branchkit.process import spawn"),
        ("branchkit.harness.toolbox", "from branchkit.harness import tools"),
        ("branchkit.cli", "def f():\n    from branchkit.divergence import tables"),
        ("branchkit.divergence.tables", "if TYPE_CHECKING:\n    import pandas as pd"),
        ("branchkit.divergence.tables", "def f():\n    import pandas as pd"),
        ("branchkit.workspace.fuse", "import pyfuse3\nimport trio"),
    ],
)
def test_an_import_to_the_left_passes(module: str, source: str) -> None:
    assert violations(module, source) == []


def test_a_package_resolves_its_own_relative_imports() -> None:
    """`from . import x` in a folder's __init__ means the folder, in a module its parent."""
    assert violations("branchkit.record", "from .fold import fold", is_package=True) == []
    assert len(violations("branchkit.record", "from ..cli import main", is_package=True)) == 1


def test_the_table_has_no_circle() -> None:
    for unit, left in ARROWS.items():
        assert not any(unit in may_import(other) for other in left), unit


def test_importing_branchkit_loads_nothing_heavy() -> None:
    """STYLE, data flow: heavy libraries come with their first use, `import branchkit` is free."""
    program = (
        "import branchkit, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert NOT_AT_IMPORT.isdisjoint(ran.stdout.split())
