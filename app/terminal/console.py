"""The terminal that results are printed on."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_WIDTH_OF_A_FILE = 120  # where standard output is no terminal and COLUMNS does not say otherwise


class _Console(Console):
    """A console that leaves it to the program what to do when nobody reads on."""

    def on_broken_pipe(self) -> None:
        """Say so; rich would exit with 1 on its own."""
        raise BrokenPipeError


def console(*, quiet: bool = False) -> Console:
    """Return the console of standard output; a file gets wide lines unless COLUMNS says otherwise."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_A_FILE
    return _Console(quiet=quiet, width=width)
