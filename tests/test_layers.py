"""What the import contracts cannot say: drivers are imported inside functions alone; the engine lives without Qt."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

WITHOUT_QT = """
import sys

class NoQt:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("PySide6", "shiboken6", "pyqtgraph"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, NoQt())
"""


def python(code: str) -> str:
    """Run code in a fresh interpreter and return what it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_engine_computes_with_qt_absent() -> None:
    code = WITHOUT_QT + (
        "import numpy as np, engine\n"
        "x = np.ones((1, 1, 2, 4), np.float32)\n"
        "print(engine.attention(x, x, x, kernel='cpu-flash').tolist() == x.tolist())"
    )
    assert python(code) == "True"


@pytest.mark.parametrize(
    "module",
    [
        "engine",
        "engine.session.session",
        "engine.layers.functional",
        "engine.kernels.registry",
        "engine.devices.gpu.device",
    ],
)
def test_importing_the_engine_loads_no_driver(module: str) -> None:
    assert python(f"import sys, {module}; print('wgpu' in sys.modules, 'PySide6' in sys.modules)") == "False False"


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--kernels", "cpu-flash", "--seq", "64", "--samples", "1", "--quiet"),
        ("run", "--list-kernels"),
        ("devices",),
        ("doctor",),
        ("tune", "--device", "cpu", "--head-dim", "16", "--seconds", "0.01"),
    ],
    ids=" ".join,
)
def test_a_command_loads_no_qt(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHSCOPE_TUNING", str(tmp_path / "tuning.json"))
    code = (
        "import contextlib, io, sys\n"
        "from app.__main__ import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        f"    main({list(words)!r})\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('PySide6', 'shiboken6', 'pyqtgraph')])"
    )
    assert python(code) == "[]"


def module_level_imports(source: str) -> Iterator[str]:
    """The names of all modules that a source imports when it is itself imported."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            only_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            pending += node.orelse if isinstance(node, ast.If) and only_types else ast.iter_child_nodes(node)


SOURCES = sorted((ROOT / "engine").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_wgpu_and_torch_are_imported_inside_functions_alone(path: Path) -> None:
    found = {name.partition(".")[0] for name in module_level_imports(path.read_text(encoding="utf-8"))}
    assert not found & {"wgpu", "torch"}


def test_the_search_for_imports_finds_them() -> None:
    guarded = "if TYPE_CHECKING:\n    import c\nelse:\n    import d\n"
    top = f"import a.b\n{guarded}try:\n    from e import f\nfinally:\n    ...\n"
    assert set(module_level_imports(top + "def g():\n    import h\n")) == {"a.b", "d", "e"}
