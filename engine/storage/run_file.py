"""The run file: a whole session as JSON, with every raw sample; data from strangers when it is read."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from engine.records.events import (
    Ending,
    Event,
    KernelFailed,
    KernelFinished,
    KernelSkipped,
    MemorySample,
    SampleBatch,
    SessionFinished,
    SessionStarted,
)
from engine.records.plan import Plan
from engine.records.results import Environment, Row, Sample
from engine.storage.atomic import replace_file

SCHEMA = 2  # raise it when an older program could misread the file, as one that knows of no backward case would
MAX_FILE_BYTES = 128 << 20
MAX_ROWS = 100_000
MAX_SAMPLES = 2_000_000  # of one kernel and case, and of memory

# JSON has no such numbers; in a row they are kept as these words
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FLOAT_COLUMNS = {name for name, hint in get_type_hints(Row).items() if float in (hint, *get_args(hint))}


class SampleSeries(msgspec.Struct, frozen=True, kw_only=True):
    """The raw samples of one kernel; ``case`` is the case's index in the plan."""

    kernel: str
    case: int
    samples: Annotated[tuple[Sample, ...], msgspec.Meta(max_length=MAX_SAMPLES)]


class MemoryPoint(msgspec.Struct, frozen=True, array_like=True):
    """Memory at a moment, as in ``MemorySample``."""

    time_s: float
    process_bytes: int
    gpu_bytes: int


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole session. ``started_at`` is ISO 8601, ``reason`` how it ended: ``done``, ``cancelled`` or what broke."""

    run_id: str
    started_at: str
    reason: str
    environment: Environment
    plan: Plan
    results: tuple[Row, ...]
    samples: tuple[SampleSeries, ...]
    memory: tuple[MemoryPoint, ...] = ()

    @property
    def finished(self) -> SessionFinished:
        """The run's last event, as far as ``reason`` tells."""
        orderly = {SessionFinished(ending).reason: ending for ending in Ending if ending.orderly}
        if self.reason in orderly:
            return SessionFinished(orderly[self.reason])
        return SessionFinished(Ending.CUT_OFF, self.reason)


class _Header(msgspec.Struct, frozen=True):
    schema: Annotated[int, msgspec.Meta(ge=1)]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """How a run lies in the file: rows as plain objects, because of the numbers JSON lacks."""

    schema: int
    run_id: str
    started_at: str
    reason: str = "done"
    environment: Environment
    plan: Plan
    results: Annotated[tuple[dict[str, Any], ...], msgspec.Meta(max_length=MAX_ROWS)]
    samples: Annotated[tuple[SampleSeries, ...], msgspec.Meta(max_length=MAX_ROWS)]
    memory: Annotated[tuple[MemoryPoint, ...], msgspec.Meta(max_length=MAX_SAMPLES)] = ()


class RunRecorder:
    """Collects a session from its events: hand every event to it, beside whoever else listens.

    ``run`` is the session so far, None before it has started; ``rows`` and ``series`` may be read at any time.
    """

    def __init__(self) -> None:
        self._rows: dict[tuple[int, str], Row] = {}
        self._started: SessionStarted | None = None
        self._samples: dict[tuple[int, str], list[Sample]] = {}
        self._memory: list[MemoryPoint] = []
        self._reason = "unfinished"

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case SessionStarted():
                self._started = event
            case SampleBatch(case, kernel, samples):
                self._samples.setdefault((case.index, kernel), []).extend(samples)
            case MemorySample(time_s, process_bytes, gpu_bytes):
                self._memory.append(MemoryPoint(time_s, process_bytes, gpu_bytes))
            case KernelSkipped() | KernelFinished() | KernelFailed():
                self._rows[event.case.index, event.kernel] = event.row
            case SessionFinished():
                self._reason = event.reason
            case _:
                pass

    @property
    def rows(self) -> list[Row]:
        """The rows so far, by case and in the order the plan names the kernels, whoever finished first."""
        names = self._started.plan.kernels if self._started else ()
        order = {name: place for place, name in enumerate(names)}
        return [self._rows[key] for key in sorted(self._rows, key=lambda key: (key[0], order.get(key[1], len(order))))]

    @property
    def series(self) -> tuple[SampleSeries, ...]:
        """The raw samples so far, in the order the kernels first gave one."""
        return tuple(
            SampleSeries(kernel=kernel, case=case, samples=tuple(samples))
            for (case, kernel), samples in self._samples.items()
        )

    @property
    def run(self) -> RunFile | None:
        """The session so far as a frozen value."""
        if self._started is None:
            return None
        return RunFile(
            run_id=self._started.run_id,
            started_at=self._started.started_at,
            reason=self._reason,
            environment=self._started.environment,
            plan=self._started.plan,
            results=tuple(self.rows),
            samples=self.series,
            memory=tuple(self._memory),
        )


def save(path: str | os.PathLike[str], run: RunFile) -> None:
    """Write a run to ``path``, replacing it whole. Raises OSError, and the old file stays as it was."""
    values = {name: getattr(run, name) for name in RunFile.__struct_fields__}
    values["results"] = tuple(_without_nonfinite(msgspec.to_builtins(row)) for row in run.results)
    replace_file(path, _encode(_Document(schema=SCHEMA, **values)))


def load(path: str | os.PathLike[str]) -> RunFile:
    """Read a run. Raises OSError where it cannot be read, ValueError with one sentence where it is no sound run file.

    The file is validated field by field and its size bounded; a schema newer than this program's is refused.
    """
    name = Path(path).name
    with Path(path).open("rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"{name} is larger than {MAX_FILE_BYTES >> 20} MiB, the most a run file may be")
    try:
        schema = msgspec.json.decode(data, type=_Header).schema
        if schema > SCHEMA:
            raise ValueError(
                f"{name} was written by a newer FlashScope (schema {schema}, this one reads up to {SCHEMA}); "
                "update FlashScope to open it"
            )
        document = msgspec.json.decode(data, type=_Document)
        rows = tuple(msgspec.convert(_with_nonfinite(row), Row) for row in document.results)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{name} is not a sound FlashScope run file: {error}") from error
    values = {name: getattr(document, name) for name in RunFile.__struct_fields__}
    return RunFile(**{**values, "results": rows})


def _encode(document: _Document) -> bytes:
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:  # a path in the system's own encoding may hold what UTF-8 cannot
        return msgspec.json.encode(_utf8(msgspec.to_builtins(document)))


def _utf8(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {key: _utf8(item) for key, item in value.items()}
        case list() | tuple():
            return [_utf8(item) for item in value]
        case _:
            return value


def _without_nonfinite(row: dict[str, Any]) -> dict[str, Any]:
    words = {str(number): word for word, number in _NONFINITE.items()}
    return {key: words.get(str(value), value) if isinstance(value, float) else value for key, value in row.items()}


def _with_nonfinite(row: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _NONFINITE.get(value, value) if key in _FLOAT_COLUMNS and isinstance(value, str) else value
        for key, value in row.items()
    }
