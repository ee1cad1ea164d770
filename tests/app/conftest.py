"""Made-up races, the program itself within the test's process, an engine to script, and a watch on leftovers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import leftovers
import pytest
from made_up import make_row
from pytestqt.qtbot import QtBot
from scripted_engine import ScriptedEngine

from app.__main__ import main
from app.report.outcome import CaseRows
from engine.problem.attention_problem import AttentionProblem
from engine.records.plan import Case
from engine.records.results import Row, Status


@pytest.fixture(name="make_row")
def make_row_fixture() -> Callable[..., Row]:
    """Give tests the maker of rows."""
    return make_row


@pytest.fixture
def race() -> CaseRows:
    """Give one case in which two kernels finish, one is wrong and one is skipped."""
    case = Case(index=0, problem=AttentionProblem(heads=12, seq_q=512, head_dim=32, causal=True), input="a/sample.npz")
    return CaseRows(
        case,
        (
            make_row(case, "gpu-flash", 131.0, warnings="software adapter; spread 12 %"),
            make_row(
                case,
                "gpu-naive",
                status=Status.SKIPPED,
                message="one pair's score matrix needs 2.0 GiB, the adapter binds at most 128 MiB",
            ),
            make_row(case, "cpu-flash", 6.1234),
            make_row(
                case,
                "cpu-naive",
                status=Status.WRONG,
                message="max abs error 0.3 is above the bound 3e-06",
                verified=False,
                max_abs_err=0.3,
            ),
        ),
    )


@pytest.fixture
def sweep() -> tuple[CaseRows, ...]:
    """Give five cases over the sequence length, the naive kernels running out of memory at the end."""
    groups = []
    for index, seq in enumerate((128, 256, 512, 1024, 2048)):
        case = Case(index=index, problem=AttentionProblem(heads=4, seq_q=seq))
        scale = (seq / 512) ** 2
        rows = [make_row(case, "gpu-flash", 420 * scale), make_row(case, "cpu-flash", 5 * scale)]
        for kernel, wall in (("gpu-naive", 700.0), ("cpu-naive", 7.0)):
            if seq < 2048:
                rows.append(make_row(case, kernel, wall * scale))
            else:
                message = "its scores need 64 MiB, the limit is 48 MiB"
                rows.append(make_row(case, kernel, status=Status.SKIPPED, message=message))
        groups.append(CaseRows(case, tuple(rows)))
    return tuple(groups)


@dataclass(frozen=True)
class Ended:
    """How the program ended, and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def flashscope(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Give tests the program: its words in, its status and output out."""

    def run(*words: object) -> Ended:
        with pytest.raises(SystemExit) as ending:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert isinstance(ending.value.code, int)
        return Ended(ending.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def no_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave no display that a window could open on."""
    for name in ("QT_QPA_PLATFORM", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")


@pytest.fixture
def engine() -> ScriptedEngine:
    """Give an engine that tells of a whole race at once, until a test gives it another script."""
    return ScriptedEngine()


@pytest.fixture
def open_window(qtbot: QtBot, engine: ScriptedEngine, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open windows on the scripted engine, all with the settings and runs of one person, and close them at last."""
    from app.window.crash_report import CrashReporter
    from app.window.engine_thread import EngineBridge
    from app.window.files.autosave import autosave_folder
    from app.window.main_window import MainWindow
    from app.window.settings import SettingsStore, settings_file

    windows: list[MainWindow] = []

    def open_one(*paths: Path, engine: Any = engine) -> MainWindow:
        store = SettingsStore(settings_file())
        window = MainWindow(EngineBridge(engine), store, autosave_folder(), CrashReporter(tmp_path / "errors.log"))
        windows.append(window)
        window.show()
        with qtbot.waitSignal(window.bridge.devices_ready):
            window.start([str(path) for path in paths])
        return window

    yield open_one
    for window in windows:
        window.close_without_asking()
        window.deleteLater()


@pytest.fixture
def window(open_window: Callable[..., Any]) -> Any:
    """Give the window of a person who never used the program."""
    return open_window()


@pytest.fixture(autouse=True)
def folders_of_one_person(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what the program remembers of a person out of the home of whoever runs the tests."""
    folder = tmp_path_factory.mktemp("person")
    for name in ("config", "data", "log"):
        monkeypatch.setattr(f"platformdirs.user_{name}_dir", lambda *_, name=name, **__: str(folder / name))
    return folder


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a process, or with Qt a timer or a window behind."""
    if "qapp" in request.fixturenames:
        request.getfixturevalue("qapp")
    before = leftovers.running()
    yield
    assert leftovers.running() - before == set(), "left running"
