"""The program's entry: commands, files to open, and one plain sentence where something cannot be done."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_BAD_USAGE = 2
_INTERRUPTED = 130
_BROKEN_PIPE = 141  # 128 plus SIGPIPE, as a shell has it of any program
_LONGEST_COMPLAINT = 2000  # characters; what is repeated of a file may be of any length


def main(words: Sequence[str] | None = None) -> None:
    """Run the program on ``words`` (default: those it was started with) and exit with its status."""
    # Before anything slow is imported: a program started in the background inherits Ctrl+C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without ✓ shows ?, and nothing breaks
    try:
        status = _status(sys.argv[1:] if words is None else words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except BrokenPipeError:  # whoever read our output has gone, as with `| head`
        _write_nowhere()
        status = _BROKEN_PIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF) or error.filename is not None:
            raise
        _write_nowhere()
        print(f"standard output cannot be written: {error.strerror}", file=sys.stderr)
        status = 1
    sys.exit(status)


def _status(words: Sequence[str]) -> int:
    _give_drivers_a_folder()
    from app.plan.usage import COMMANDS, UsageError

    try:
        if words and (words[0].startswith("-") or words[0] in COMMANDS):
            return _command(words)
        return _window(words)
    except UsageError as error:
        return _complain(str(error))


def _command(words: Sequence[str]) -> int:
    import typer

    from app.terminal.cli import command_line

    try:
        return command_line(words)
    except typer.TyperException as error:
        return _complain(error.format_message() if hasattr(error, "format_message") else str(error))


def _window(paths: Sequence[str]) -> int:
    """Open the window with files in it; without a display print the saved runs among them."""
    from app.plan.usage import UsageError, check_files
    from app.window.display import why_no_window

    check_files(paths)
    reason = why_no_window()
    if reason is not None and paths:
        from app.terminal.saved_runs import print_runs

        print_runs(paths)
        print(f"No window can open: {reason}; the results are printed instead.", file=sys.stderr)
        return 0
    if reason is not None:
        raise UsageError(f"no window can open: {reason}; race with `flashscope run`, or see `flashscope --help`")
    try:
        from app.window.application import open_window
    except ImportError as error:  # Qt lacks a library
        raise UsageError(f"no window can open: {error}; `flashscope doctor` names what mends it") from error
    return open_window(paths)


def _complain(sentence: str) -> int:
    """Print one sentence on one line and return the status of bad usage."""
    from engine.common.messages import shown

    print(shown(" ".join(sentence.split()), _LONGEST_COMPLAINT), file=sys.stderr)
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


def _open_missing_streams() -> None:
    """Give a program that was started with its standard output or error closed (``>&-``) one that leads nowhere."""
    import os

    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open until the end


def _write_nowhere() -> None:
    """Send what is still buffered nowhere, so that the interpreter's own flush at exit does not fail too."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
