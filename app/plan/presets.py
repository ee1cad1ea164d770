"""Shapes of real models, as files that the set-up can be filled from."""

from __future__ import annotations

from importlib.resources import files

import msgspec


class Preset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's attention as the command line's options would say it; sizes are sweeps as text.

    ``about`` is one sentence on where these shapes come from.
    """

    name: str
    about: str
    order: int
    heads: str
    kv_heads: int | None = None
    seq: str
    seq_k: int | None = None
    head_dim: str
    causal: bool = False
    window: int | None = None
    softcap: float | None = None


def presets() -> list[Preset]:
    """Return every preset in ``resources/presets``, in their order."""
    folder = files("resources") / "presets"
    found = [
        msgspec.json.decode(file.read_bytes(), type=Preset) for file in folder.iterdir() if file.name.endswith(".json")
    ]
    return sorted(found, key=lambda preset: preset.order)
