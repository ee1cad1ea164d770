"""What attention holds in memory, naive and flash, side by side."""

from __future__ import annotations

import msgspec


class MemoryEstimate(msgspec.Struct, frozen=True):
    """Bytes that naive and flash attention hold; ``reduction_ratio`` is ``1 - flash/naive``.

    The ratio is negative where flash holds more, as it does for short sequences, and 0 where neither holds anything.
    """

    naive_bytes: int
    flash_bytes: int
    reduction_ratio: float

    @classmethod
    def of(cls, naive_bytes: int, flash_bytes: int) -> MemoryEstimate:
        """Return the estimate with its ratio."""
        return cls(naive_bytes, flash_bytes, 1 - flash_bytes / naive_bytes if naive_bytes else 0.0)
