"""The program's entry: commands, files to open, and one plain sentence where something cannot be done."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

_BAD_USAGE = 2
_INTERRUPTED = 130


def main(words: Sequence[str] | None = None) -> None:
    """Run the program on ``words`` (default: those it was started with) and exit with its status."""
    # Before anything slow is imported: a program started in the background inherits Ctrl+C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ✓ shows ?, and nothing breaks
    try:
        status = _status(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone, as with `| head`
        status = _without_a_reader()
    sys.exit(status)


def _status(words: Sequence[str]) -> int:
    _give_drivers_a_folder()
    import typer

    from app.cli import COMMANDS, UsageError, command_line, open_files

    try:
        if words and not words[0].startswith("-") and words[0] not in COMMANDS:
            return open_files(words)
        return command_line(words)
    except typer.TyperException as error:
        return _complain(error.format_message() if hasattr(error, "format_message") else str(error))
    except UsageError as error:
        return _complain(str(error))


def _complain(sentence: str) -> int:
    """Print one sentence on one line and return the status of bad usage."""
    print(" ".join(sentence.split()), file=sys.stderr)
    return _BAD_USAGE


def _give_drivers_a_folder() -> None:
    """Set XDG_RUNTIME_DIR where it is missing, as in a container: without it Mesa and Qt complain on stderr."""
    import atexit
    import os
    import shutil
    import tempfile

    if sys.platform.startswith("linux") and not os.environ.get("XDG_RUNTIME_DIR"):
        folder = os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="flashscope-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _without_a_reader() -> int:
    """Send what is still buffered nowhere, so that the interpreter's own flush at exit does not fail too."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    main()
