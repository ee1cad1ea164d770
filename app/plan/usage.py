"""What the first word of the command line may be, and the error for words that cannot be followed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("run", "devices", "doctor", "tune")
TENSOR_ENDINGS = (".npz", ".npy", ".safetensors")  # of files that hold Q, K and V; any other may be a saved run


class UsageError(Exception):
    """The words of the command line cannot be followed; the message is one sentence for whoever typed them."""


def check_files(paths: Sequence[str]) -> None:
    """Raise UsageError for a word that is no file."""
    for path in paths:
        if Path(path).is_dir():
            raise UsageError(f"{path} is a directory; name a saved run or a tensor file in it")
        if not Path(path).exists():
            raise UsageError(f"{path!r} is neither a command ({', '.join(COMMANDS)}) nor a file")
