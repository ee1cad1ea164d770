"""What every test stands on: no display, no deadlines, a runtime folder for Mesa, and the real tensors at hand."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from engine.devices import processor

# No test fails for the time it took; in CI all runs see the same examples, so that red means the change is at fault.
settings.register_profile(
    "flashscope", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("flashscope")

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
# Nothing of the person who runs the tests is read or written, and tests that run side by side share no file.
_OWN = tempfile.mkdtemp(prefix="flashscope-tests-")
atexit.register(shutil.rmtree, _OWN, ignore_errors=True)
os.environ["FLASHSCOPE_TUNING"] = str(Path(_OWN) / "no-tuning.json")
if not os.environ.get("XDG_RUNTIME_DIR"):  # Mesa prints error lines without one
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="flashscope-")
    atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "resources" / "samples" / "minilm_layer2_128.npz"
PADDED = ROOT / "tests" / "data" / "minilm_layer2_padded.npz"


LONG = bool(os.environ.get("FLASHSCOPE_LONG"))  # ``make test-all``: the wide nets and campaigns too


def pytest_addoption(parser: pytest.Parser) -> None:
    """A processor may be imposed, so that no test holds on one processor alone."""
    group = parser.getgroup("flashscope")
    group.addoption("--l2-kib", type=int, help="the L2 cache of a core that the tests are to see, in KiB")
    group.addoption("--cores", type=int, help="the cores that the tests are to see")


def pytest_configure(config: pytest.Config) -> None:
    """Impose the processor before a module that asks for it is imported; register the mark of long tests."""
    config.addinivalue_line("markers", "long: a wide net or a campaign, run where FLASHSCOPE_LONG is set")
    l2_kib, cores = config.getoption("--l2-kib"), config.getoption("--cores")
    if l2_kib:
        sizes = {1: 32 << 10, 2: l2_kib << 10, 3: 32 << 20}
        processor.cache_bytes = sizes.__getitem__  # type: ignore[assignment]
    if cores:
        os.sched_getaffinity = lambda _: set(range(cores))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long tests to ``make test-all``."""
    if LONG:
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def real_tensor_files() -> list[Path]:
    """The tensor files that ship here, and the whole recordings in the folder that FLASHSCOPE_DATA names."""
    folder = os.environ.get("FLASHSCOPE_DATA")
    return [SAMPLE, PADDED, *(sorted(Path(folder).glob("*.npz")) if folder else ())]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``tensor_file`` runs once for each real tensor file."""
    if "tensor_file" in metafunc.fixturenames:
        files = real_tensor_files()
        metafunc.parametrize("tensor_file", files, ids=[file.stem for file in files])


@pytest.fixture
def sample_file() -> Path:
    """The sample tensors that ship with the program: q, k, v of [1, 12, 128, 32]."""
    return SAMPLE


@pytest.fixture
def padded_file() -> Path:
    """A padded batch with key_mask and recorded output: [2, 4, 67, 32], 67 and 33 keys visible."""
    return PADDED
