"""The set-up as a value: what is wrong is said field by field, what is right becomes the command line's plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.plan import options
from app.plan.options import Rule, Shape
from app.plan.presets import presets
from app.window.setup.setup import Setup
from engine.problem.inputs import preview


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("batch", "0", "at least 1"),
        ("heads", "5x", "not a sweep"),
        ("seq", "512..128*2", "below its start"),
        ("head_dim", "64..", "not a sweep"),
        ("kv_heads", "two", "whole number"),
        ("kv_heads", "0", "at least 1"),
        ("seq_k", "1.5", "whole number"),
        ("head_dim_v", "300", "at most 256"),
        ("softcap", "lots", "must be a number"),
        ("scale", "1/8", "must be a number"),
        ("seed", "-1", "at least 0"),
        ("seed", "9" * 19, "at most"),
        ("threads", "0", "at least 1"),
        ("memory_limit", "8 parsecs", "no size"),
    ],
)
def test_a_field_that_means_nothing_is_named(field: str, text: str, words: str) -> None:
    setup = replace(Setup(), **{field: text})
    complaints = setup.complaints()
    assert list(complaints) == [field]
    assert words in complaints[field]
    assert "--" not in complaints[field]
    with pytest.raises(ValueError, match=words):
        setup.plan(None)


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (Setup(kernels=()), "tick at least one"),
        (Setup(heads="8", kv_heads="3"), "multiple of kv_heads"),
        (Setup(mask="window"), "needs a length"),
        (Setup(softcap="0"), "above 0"),
        (Setup(head_dim="300"), "at most 256"),
        (Setup(threads="5000"), "at most 1024"),
        (Setup(batch="1..500+1", heads="1,2,3"), "1500 cases"),
        (Setup(batch="1..600+1", direction="both"), "600 × 2 = 1200 cases"),
        (Setup(direction="sideways"), "^direction must be forward, backward or both, got 'sideways'$"),
        (Setup(label="two\nlines"), "one line"),
        (Setup(seq="99999999999"), "too large"),
    ],
)
def test_fields_that_clash_are_told_in_their_own_names(setup: Setup, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        setup.plan(None)
    assert "--" not in str(caught.value)


def test_what_does_not_count_is_not_complained_about() -> None:
    assert Setup(window="rubbish").complaints() == {}
    assert Setup(tensors="a.npz", seq="rubbish").complaints() == {}
    assert Setup(mask="window", window="rubbish").complaints().keys() == {"window"}


def test_the_plan_is_the_command_lines() -> None:
    setup = Setup(heads="4,8", seq="128..512*2", head_dim_v="32", mask="window", window="64", softcap="30", threads="2",
                  direction="both")  # fmt: skip
    shape = Shape(batch="1", heads="4,8", seq="128..512*2", head_dim="64", head_dim_v=32)
    assert setup.plan(None).cases == options.cases(shape, Rule(window=64, softcap=30.0), None, "2", "both")


def test_a_tensor_file_gives_the_shape(padded_file: Path) -> None:
    setup = Setup(tensors=str(padded_file), mask="causal", threads="1,2", direction="both")
    plan = setup.plan(preview(str(padded_file)))
    assert plan.cases == options.cases(Shape(), Rule(causal=True), str(padded_file), "1,2", "both")
    assert plan.cases[0].problem.key_mask is not None
    assert setup.tensor_names == padded_file.name


def test_presets_are_the_models_shapes() -> None:
    problems = {preset.name: Setup().with_preset(preset).plan(None).cases[-1].problem for preset in presets()}
    assert len(problems) == 10
    shapes = {
        name: (p.heads, p.kv_heads, p.seq_q, p.seq_k, p.head_dim, p.causal, p.window, p.softcap)
        for name, p in problems.items()
    }
    assert shapes["GPT-2"] == (12, 12, 1024, 1024, 64, True, None, None)
    assert shapes["BERT-base"] == (12, 12, 512, 512, 64, False, None, None)
    assert shapes["ViT-B/16"] == (12, 12, 14 * 14 + 1, 14 * 14 + 1, 64, False, None, None)
    assert shapes["Whisper-small encoder"] == (12, 12, 1500, 1500, 64, False, None, None)
    assert shapes["Llama-3-8B prefill"] == (32, 8, 2048, 2048, 128, True, None, None)
    assert shapes["Llama-3-8B decode"] == (32, 8, 1, 8192, 128, True, None, None)
    assert shapes["Mistral-7B, window"] == (32, 8, 8192, 8192, 128, True, 4096, None)
    assert shapes["Gemma-2-9B, softcap"] == (16, 8, 4096, 4096, 256, True, None, 50.0)
    assert shapes["MiniLM"] == (12, 12, 128, 128, 32, False, None, None)


def test_a_preset_leaves_kernels_device_and_length_alone() -> None:
    mine = Setup(kernels=("cpu-flash",), device="cpu", seconds=9.0, threads="1", label="x", tensors="t.npz",
                 direction="both")  # fmt: skip
    chosen = mine.with_preset(presets()[0])
    assert (chosen.kernels, chosen.device, chosen.seconds, chosen.threads, chosen.label, chosen.direction) == (
        mine.kernels, mine.device, mine.seconds, mine.threads, mine.label, mine.direction,
    )  # fmt: skip
    assert chosen.tensors == ""
