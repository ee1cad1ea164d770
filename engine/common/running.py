"""What running a kernel means to whoever waits for it: its times, and how it is stopped."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

ShouldStop = Callable[[], bool]


def never_stop() -> bool:
    """Return False: the ``should_stop`` of a caller that never stops."""
    return False


class Cancelled(Exception):  # noqa: N818 - not an error: the person asked for it
    """Raised out of a run when ``should_stop`` answered True."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Time of ``repeat`` back-to-back runs of a kernel, in milliseconds for all of them together.

    ``wall_ms`` runs from submit to completion, without upload and read-back. ``gpu_ms`` is the GPU's own clock, None
    where there is none or it gave nonsense.
    """

    wall_ms: float
    gpu_ms: float | None = None
