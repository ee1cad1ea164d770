"""From words to a plan: a tensor file is judged by its headers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.plan.options import Rule, Shape, cases


def test_a_tensor_file_is_not_unpacked_to_make_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tensors.npz"
    array = np.zeros((1, 2, 64, 8), np.float32)
    np.savez_compressed(path, q=array, k=array, v=array)

    def unpacked(*_: object, **__: object) -> None:
        raise AssertionError("unpacked")

    monkeypatch.setattr(np.lib.format, "read_array", unpacked)
    (case,) = cases(Shape(), Rule(causal=True), str(path), None, "forward")
    assert (case.problem.q_shape, case.problem.causal) == ((1, 2, 64, 8), True)
