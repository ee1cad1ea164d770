"""Columns of numbers that grow: what a long run leaves in memory is a few bytes a sample, not an object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.records.results import Sample
from engine.storage.run_file import MemoryPoint

_FIRST = 64  # places made at once; then a quarter more


class Columns:
    """Named columns of one length, each a NumPy array that grows."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self._held: dict[str, NDArray[Any]] = {name: np.empty(_FIRST, dtype) for name, dtype in types.items()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, **values: Sequence[float]) -> None:
        """Add rows at the end: for every column as many values."""
        end = self._count + len(next(iter(values.values())))
        for name, held in self._held.items():
            grown = held
            if end > len(held):
                grown = np.empty(max(end, len(held) * 5 // 4), held.dtype)
                grown[: self._count] = held[: self._count]
            grown[self._count : end] = values[name]
            self._held[name] = grown
        self._count = end

    @property
    def nbytes(self) -> int:
        """Bytes held, what is kept free for the next rows among them."""
        return sum(held.nbytes for held in self._held.values())

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column as a view: it stays as it is while more rows come."""
        return self._held[name][: self._count]


class SampleColumns(Columns):
    """The samples of one kernel in one case, in order: fields as in ``Sample``, gpu_ms NaN where unknown.

    A sample's index is its place.
    """

    def __init__(self) -> None:
        super().__init__({"started_s": "f8", "wall_ms": "f8", "gpu_ms": "f8", "repeats": "u4"})

    def extend(self, samples: Sequence[Sample]) -> None:
        """Add samples. Raises OverflowError for repeats no machine could do, which a made-up file may hold."""
        self.append(
            started_s=[sample.started_s for sample in samples],
            wall_ms=[sample.wall_ms for sample in samples],
            gpu_ms=[math.nan if sample.gpu_ms is None else sample.gpu_ms for sample in samples],
            repeats=[sample.repeats for sample in samples],
        )

    def samples(self) -> tuple[Sample, ...]:
        """Return the samples as the run file holds them."""
        columns = (self[name].tolist() for name in ("started_s", "wall_ms", "gpu_ms", "repeats"))
        return tuple(
            Sample(index, started, wall, None if math.isnan(gpu) else gpu, repeats)
            for index, (started, wall, gpu, repeats) in enumerate(zip(*columns, strict=True))
        )


class MemoryColumns(Columns):
    """Memory over time: fields as in ``MemorySample``."""

    def __init__(self) -> None:
        super().__init__({"time_s": "f8", "process_bytes": "i8", "gpu_bytes": "i8"})

    def extend(self, points: Sequence[MemoryPoint]) -> None:
        """Add points. Raises OverflowError for bytes no machine has, which a made-up file may hold."""
        self.append(
            time_s=[point.time_s for point in points],
            process_bytes=[point.process_bytes for point in points],
            gpu_bytes=[point.gpu_bytes for point in points],
        )

    def points(self) -> tuple[MemoryPoint, ...]:
        """Return the points as the run file holds them."""
        columns = (self[name].tolist() for name in ("time_s", "process_bytes", "gpu_bytes"))
        return tuple(MemoryPoint(*values) for values in zip(*columns, strict=True))
