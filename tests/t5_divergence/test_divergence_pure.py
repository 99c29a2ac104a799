"""The package is pure, and importing it is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import branchkit.divergence

FOLDER = Path(branchkit.divergence.__file__).parent
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")

# Reads events that others have read from a file; the rest of the folder sees vectors alone.
READS_EVENTS = {"branchkit.journal.events", "branchkit.journal.format"}

ALLOWED = {
    "__future__", "collections", "collections.abc", "dataclasses", "difflib", "functools",
    "itertools", "math", "re",
    "numpy", "numpy.typing", "pandas", "scipy.optimize", "scipy.special", "scipy.stats",
    "statsmodels.stats.multitest", "textwrap", "typing",
    "branchkit.errors",
}  # fmt: skip


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names.add(str(node.module))
    return names


def test_no_io_no_clock_no_randomness() -> None:
    """STYLE rule 1: nothing that could read, tell the time or roll dice is even imported."""
    for path in FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {name for name in imported(tree) if not name.startswith("branchkit.divergence")}
        allowed = ALLOWED | READS_EVENTS if path.stem == "vectors" else ALLOWED
        assert names <= allowed, f"{path.name} imports {sorted(names - allowed)}"
        calls = {node.func.id for node in ast.walk(tree)
                 if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}  # fmt: skip
        assert not calls & {"open", "print", "input", "exec", "eval", "__import__"}, path.name


def test_import_leaves_the_heavy_libraries_alone() -> None:
    """A fresh interpreter imports every module and has none of them."""
    lines = [f"import branchkit.divergence.{name}" for name in MODULES]
    heavy = "{'numpy', 'scipy', 'statsmodels', 'pandas'}"
    script = "; ".join(["import sys", *lines, f"print(sorted({heavy} & set(sys.modules)))"])
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
