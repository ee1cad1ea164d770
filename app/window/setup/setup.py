"""What the set-up dock holds, as one value of plain texts and numbers: checked field by field, and made into a plan."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.plan import options, sweep
from app.plan.options import Rule, Shape
from app.plan.presets import Preset
from app.window.look.local_numbers import read_number
from engine.kernels.registry import DEFAULT_KERNELS
from engine.problem.attention_problem import MAX_HEAD_DIM
from engine.problem.inputs import Preview
from engine.records.plan import Plan

MASKS = ("none", "causal", "window")
SWEPT = ("batch", "heads", "seq", "head_dim")
SHAPE = (*SWEPT, "kv_heads", "seq_k", "head_dim_v")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The fields of the dock. Texts are as typed; an empty one stands for the default."""

    batch: str = "1"
    heads: str = "8"
    kv_heads: str = ""
    seq: str = "1024"
    seq_k: str = ""
    head_dim: str = "64"
    head_dim_v: str = ""
    mask: str = "none"
    window: str = ""
    softcap: str = ""
    scale: str = ""
    dtype: str = "f32"
    direction: str = "forward"
    tensors: str = ""  # a file in place of the shape
    kernels: tuple[str, ...] = DEFAULT_KERNELS
    device: str = "auto"
    by_count: bool = False
    seconds: float = 2.0
    samples: int = 100
    min_samples: int = 10
    seed: str = "0"
    threads: str = ""
    memory_limit: str = ""
    checks: bool = True
    label: str = ""

    def complaints(self) -> dict[str, str]:
        """Return a sentence for every field whose text, taken alone, has no meaning."""
        found = {}
        for name, check in _CHECKS.items():
            text = getattr(self, name).strip()
            unused = (self.tensors and name in SHAPE) or (name == "window" and self.mask != "window")
            if text and not unused:
                try:
                    check(text)
                except ValueError as error:
                    found[name] = _plain(error)
        if self.mask == "window" and not self.window.strip():
            found["window"] = "the window needs a length, in keys that a query sees"
        return found

    def plan(self, preview: Preview | None) -> Plan:
        """Return the plan; ``preview`` is that of the tensor file. Raises ValueError with one sentence."""
        for complaint in self.complaints().values():
            raise ValueError(complaint)
        if not self.kernels:
            raise ValueError("no kernel is chosen; tick at least one")
        rule = Rule(
            causal=self.mask != "none",
            window=int(self.window) if self.mask == "window" else None,
            softcap=_number(self.softcap),
            scale=_number(self.scale),
            dtype=self.dtype,
        )
        threads = self.threads.strip() or None
        try:
            if preview is not None:
                cases = options.tensor_cases(preview.problem(**rule.arguments()), self.tensors, threads, self.direction)
            else:
                cases = options.cases(self._shape(), rule, None, threads, self.direction)
            return options.plan(
                kernels=",".join(self.kernels),
                cases=cases,
                device=self.device,
                seed=int(self.seed.strip() or 0),
                seconds=self.seconds,
                samples=self.samples if self.by_count else None,
                min_samples=self.min_samples,
                memory_limit=self.memory_limit.strip() or None,
                checks=self.checks,
                label=self.label.strip(),
            )
        except ValueError as error:
            raise ValueError(_plain(error)) from error

    def _shape(self) -> Shape:
        return Shape(
            batch=self.batch.strip() or None,
            heads=self.heads.strip() or None,
            kv_heads=_count(self.kv_heads),
            seq=self.seq.strip() or None,
            seq_k=_count(self.seq_k),
            head_dim=self.head_dim.strip() or None,
            head_dim_v=_count(self.head_dim_v),
        )

    def with_preset(self, preset: Preset) -> Setup:
        """Return the set-up with a model's problem; kernels, device and run length stay."""
        return replace(
            self,
            batch="1",
            heads=preset.heads,
            kv_heads=_text(preset.kv_heads),
            seq=preset.seq,
            seq_k=_text(preset.seq_k),
            head_dim=preset.head_dim,
            head_dim_v="",
            mask="window" if preset.window else "causal" if preset.causal else "none",
            window=_text(preset.window),
            softcap=_text(preset.softcap),
            scale="",
            tensors="",
        )

    @property
    def tensor_names(self) -> str:
        """The tensor file's name, or names, without folders."""
        return ", ".join(path.name for path in options.input_paths(self.tensors or None)) or Path(self.tensors).name


def _plain(error: ValueError) -> str:
    """Return the sentence with options (``--head-dim``) named as the fields are (``head_dim``)."""
    return re.sub(r"--([a-z][a-z-]*)", lambda found: found[1].replace("-", "_"), str(error))


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _count(text: str) -> int | None:
    return int(text) if text.strip() else None


def _number(text: str) -> float | None:
    return read_number(text) if text.strip() else None


def _check_whole(name: str, least: int, most: int = 2**63 - 1) -> Callable[[str], None]:
    def check(text: str) -> None:
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
            raise ValueError(f"{name} must be a whole number, got {text!r}")
        if not least <= int(text) <= most:
            bound = f"at least {least}" if int(text) < least else f"at most {most}"
            raise ValueError(f"{name} must be {bound}, got {text}")

    return check


def _check_number(name: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        if read_number(text) is None:
            raise ValueError(f"{name} must be a number, got {text!r}")

    return check


def _check_sweep(name: str) -> Callable[[str], None]:
    def check(text: str) -> None:
        try:
            sweep.parse(text)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    return check


_CHECKS: dict[str, Callable[[str], object]] = {
    **{name: _check_sweep(name) for name in (*SWEPT, "threads")},
    "kv_heads": _check_whole("kv_heads", 1),
    "seq_k": _check_whole("seq_k", 1),
    "head_dim_v": _check_whole("head_dim_v", 1, MAX_HEAD_DIM),
    "window": _check_whole("window", 1),
    "softcap": _check_number("softcap"),
    "scale": _check_number("scale"),
    "seed": _check_whole("seed", 0),
    "memory_limit": options.byte_count,
}


def joined(paths: Sequence[str]) -> str:
    """Return the files as ``--input`` takes them, three .npy files in the order of their names' last letters."""
    order = {"q": 0, "k": 1, "v": 2}
    return ",".join(sorted(paths, key=lambda path: order.get(Path(path).stem[-1:].lower(), len(order))))
