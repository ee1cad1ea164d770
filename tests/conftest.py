"""What every test stands on: no display, no deadlines, a runtime folder for Mesa, and the real tensors at hand."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test fails for the time it took; in CI all runs see the same examples, so that red means the change is at fault.
settings.register_profile(
    "flashscope", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("flashscope")

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["FLASHSCOPE_TUNING"] = str(Path(tempfile.gettempdir()) / "flashscope-tests-have-no-tuning.json")
if not os.environ.get("XDG_RUNTIME_DIR"):  # Mesa prints error lines without one
    os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="flashscope-")
    atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "resources" / "samples" / "minilm_layer2_128.npz"
PADDED = ROOT / "tests" / "data" / "minilm_layer2_padded.npz"


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
