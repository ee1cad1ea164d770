"""FlashScope's engine: attention kernels, how they are measured, and nothing of the window."""

from __future__ import annotations

__version__ = "0.1.0"
