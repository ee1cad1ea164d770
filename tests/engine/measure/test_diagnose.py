"""Diagnosis: a tiled kernel with one planted mistake is told that mistake, and a right one nothing."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.common.running import ShouldStop, Timing, never_stop
from engine.devices.device import Limits
from engine.kernels.base import Kernel, Outputs, Prepared
from engine.measure.diagnose import Comparison, diagnose
from engine.measure.turn import Turn
from engine.measure.verify import expect
from engine.problem.attention_problem import AttentionProblem
from engine.problem.inputs import Inputs, seeded
from engine.reference.forward import reference

F = np.float32


def tiled(problem: AttentionProblem, inputs: Inputs, fault: str = "", tile: int = 32) -> NDArray[np.float32]:
    """Flash attention in float32, row by row and tile by tile as a shader does it, with one planted fault."""
    p = problem
    out = np.full(p.output_shape, np.nan, F)
    mask = None if p.key_mask is None else p.key_mask.unpack()
    for b in range(p.batch):
        for h in range(p.heads):
            kv = h % p.kv_heads if fault == "gqa" else h // p.group
            k, v = inputs.k[b, kv].astype(F), inputs.v[b, kv].astype(F)
            acc = np.zeros((p.seq_q, p.head_dim_v), F)
            totals = np.zeros(p.seq_q, F)
            for i in range(p.seq_q):
                limit = p.seq_k if not p.causal else min(p.seq_k, i + p.offset + 1)
                limit += {"causal too few": -1, "causal too many": 1}.get(fault, 0)
                limit = max(0, min(limit, p.seq_k))
                if fault == "last keys":
                    limit = min(limit, p.seq_k // tile * tile)
                first = 0 if p.window is None else max(0, i + p.offset - p.window + 1)
                top, total = -math.inf, F(0)
                for at in range(first, limit, tile):
                    at_end = min(at + tile, limit)
                    s = (k[at:at_end] @ inputs.q[b, h, i].astype(F)) * F(1 if fault == "scale" else p.scale)
                    if p.softcap is not None and fault != "softcap":
                        s = F(p.softcap) * np.tanh(s / F(p.softcap))
                    if mask is not None and fault != "mask":
                        keep = mask[b, at:at_end]
                        s = np.where(keep, s, -np.inf)
                    if not np.isfinite(s).any():
                        continue
                    higher = max(top, float(s.max()))
                    if fault == "maximum lost":
                        higher = float(s.max())
                    shrink = F(math.exp(top - higher)) if math.isfinite(top) else F(0)
                    if fault == "maximum lost":
                        shrink = F(1)
                    w = np.exp(s - F(higher))
                    total = total * (F(1) if fault == "sum not rescaled" else shrink) + w.sum(dtype=F)
                    acc[i] = acc[i] * (F(1) if fault == "output not rescaled" else shrink) + w @ v[at:at_end]
                    top = higher
                totals[i] = total
            below = totals.copy()
            if fault == "neighbour":
                below[:-1] = totals[1:]
            safe = np.where(below > 0, below, F(1))
            out[b, h] = acc if fault == "not normalised" else acc / safe[:, None]
    if fault == "last rows":
        out[:, :, p.seq_q // 16 * 16 :] = np.nan
    if fault == "heads":
        out = np.ascontiguousarray(np.roll(out, 1, axis=1))
    if fault == "last columns":
        out[..., p.head_dim_v // 8 * 8 :] = 0
    return out


def compare(problem: AttentionProblem, inputs: Inputs, got: NDArray[np.float32]) -> Comparison:
    want, _, _ = reference(problem, inputs)
    return Comparison(np.arange(problem.seq_q), got, want, np.float64(2e-5))


PLAIN = AttentionProblem(heads=2, seq_q=77, seq_k=77, head_dim=24)
GROUPED = AttentionProblem(heads=6, kv_heads=3, seq_q=40, seq_k=70, head_dim=16, causal=True)


@pytest.mark.parametrize(
    ("fault", "cause", "word", "rules"),
    [
        ("last keys", "last keys left out", "keys 64 to 76", {}),
        ("causal too few", "causal off by one", "does not see its own key", {"causal": True}),
        ("causal too many", "causal off by one", "one key too many", {"causal": True}),
        ("neighbour", "normaliser of the neighbouring row", "next row", {}),
        ("neighbour", "normaliser of the neighbouring row", "next row", {"causal": True}),
        ("scale", "scale forgotten", "multiply them by scale", {}),
        ("scale", "scale forgotten", "multiply them by scale", {"causal": True, "window": 20}),
        ("maximum lost", "maximum not carried", "tiles? of 32 keys|tile of 32 keys", {}),
        ("sum not rescaled", "maximum not carried", "the sum is not rescaled.* 32 keys", {}),
        ("output not rescaled", "maximum not carried", "the output is not rescaled.* 32 keys", {}),
        ("not normalised", "not normalised", "not divided", {}),
        ("softcap", "softcap forgotten", "soft cap", {"softcap": 1.5}),
        ("last rows", "last rows not written", "rows 64 to 76", {}),
        ("heads", "heads mixed up", "holds what head", {}),
    ],
)
def test_a_planted_fault_is_named(fault: str, cause: str, word: str, rules: dict[str, Any]) -> None:
    fields = {"heads": 2, "seq_q": 77, "seq_k": 77, "head_dim": 24} | rules
    problem = AttentionProblem(**fields)
    inputs = seeded(problem, 3)
    found = diagnose(problem, inputs, compare(problem, inputs, tiled(problem, inputs, fault)))
    assert found.cause == cause, found
    assert re.search(word, found.text), found.text
    assert found.worst is not None


def test_a_wrong_key_value_head_is_named() -> None:
    inputs = seeded(GROUPED, 3)
    found = diagnose(GROUPED, inputs, compare(GROUPED, inputs, tiled(GROUPED, inputs, "gqa")))
    assert found.cause == "wrong key-value head"
    assert "head % kv_heads" in found.text


def test_an_ignored_key_mask_is_named() -> None:
    problem = AttentionProblem(
        batch=2, heads=2, seq_q=30, head_dim=8, key_mask=np.random.default_rng(0).random((2, 30)) < 0.6
    )
    inputs = seeded(problem, 3)
    found = diagnose(problem, inputs, compare(problem, inputs, tiled(problem, inputs, "mask")))
    assert found.cause == "key_mask ignored"


def test_columns_that_are_left_out_are_said_to_begin_at_a_tile() -> None:
    problem = AttentionProblem(heads=2, seq_q=30, head_dim=20)
    inputs = seeded(problem, 3)
    found = diagnose(problem, inputs, compare(problem, inputs, tiled(problem, inputs, "last columns")))
    assert found.tile_columns == 16
    assert "columns are 16 to 19" in found.text


@pytest.mark.parametrize("problem", [PLAIN, GROUPED])
def test_a_right_result_has_no_diagnosis(problem: AttentionProblem) -> None:
    inputs = seeded(problem, 3)
    got = tiled(problem, inputs)
    found = diagnose(problem, inputs, compare(problem, inputs, got), got.copy())
    assert found.cause is None
    assert found.sentences == ()
    assert found.deterministic is True


def test_runs_that_differ_are_a_race_and_a_first_run_alone_wrong_is_unset_memory() -> None:
    inputs = seeded(PLAIN, 3)
    right = tiled(PLAIN, inputs)
    off = right.copy()
    off[0, 1, 5:9] += 1
    assert diagnose(PLAIN, inputs, compare(PLAIN, inputs, off), right).cause == "unset memory"
    other = right.copy()
    other[0, 0, 2] += 1
    racing = diagnose(PLAIN, inputs, compare(PLAIN, inputs, off), other)
    assert racing.cause == "race"
    assert racing.deterministic is False
    harmless = diagnose(PLAIN, inputs, compare(PLAIN, inputs, right), np.nextafter(right, F(9)))
    assert harmless.cause == "race"
    assert harmless.worst is None


def test_a_mistake_nobody_knows_is_described_by_where_it_is() -> None:
    inputs = seeded(PLAIN, 3)
    got = tiled(PLAIN, inputs)
    got[0, 1, 64:] += np.linspace(1, 2, 24, dtype=F)
    found = diagnose(PLAIN, inputs, compare(PLAIN, inputs, got))
    assert found.cause is None
    assert "only head 1 of 2 is wrong" in found.text
    assert "rows are 64 to 76, from a multiple of 64 on" in found.text


def test_rows_off_by_a_factor_are_said_to_be() -> None:
    inputs = seeded(PLAIN, 3)
    got = tiled(PLAIN, inputs) * np.linspace(1.1, 3, 77, dtype=F)[:, None]
    found = diagnose(PLAIN, inputs, compare(PLAIN, inputs, got))
    assert "normaliser is off" in found.text


class Unscaled(Kernel):
    """A kernel that forgets the scale."""

    name, summary, device_kind, naive = "unscaled", "", "cpu", "cpu-naive"

    def supports(self, problem: AttentionProblem, limits: Limits) -> str | None:
        return None

    def predict(self, problem: AttentionProblem, limits: Limits) -> int:
        return problem.tensor_bytes

    def prepare(self, problem: AttentionProblem, inputs: Inputs, device: Any, *, want_lse: bool = False) -> Prepared:
        return PreparedUnscaled(tiled(problem, inputs, "scale"))


class PreparedUnscaled(Prepared):
    def __init__(self, result: NDArray[np.float32]) -> None:
        self._result = result

    def run(self, repeat: int = 1, should_stop: ShouldStop = never_stop) -> Timing:
        return Timing(wall_ms=1.0)

    def poison(self) -> None:
        """The result is there already."""

    def outputs(self) -> Outputs:
        return Outputs(self._result)

    def close(self) -> None:
        """Nothing is held."""


def test_the_message_of_a_wrong_kernel_begins_with_its_mistake() -> None:
    inputs = seeded(PLAIN, 3)
    turn = Turn("unscaled", kernel=Unscaled())
    turn.first_run(PLAIN, inputs, expect(PLAIN, inputs), 1.0, never_stop)
    assert turn.verdict is not None
    assert turn.verdict.verified is False
    assert turn.verdict.message.startswith("the scores are not scaled: multiply them by scale; output is ")
