"""The compiled plans against the reference's own numbers: every prompt, and forced decode steps behind some."""

from functools import cache
from pathlib import Path

import pytest
import torch
from golden_model import cached_values
from safetensors.torch import load_file
from tolerances import NEAR_LOGITS, STEP_LOGITS, STEP_MEDIAN, UNFLIPPED_LOGITS, WHOLE_MODEL
from torch import Tensor

import dsv41c
from dsv41c.runtime.engine import Completion, Engine
from dsv41c.runtime.sampling import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden"
PROMPTS = {
    "mini6": ("p1", "p2", "p3", "p7", "p15", "p16", "p17", "p33", "p100"),
    "sched40": ("p1", "p2", "p17", "p33", "p100"),
}
CASES = [(model, prompt) for model, prompts in PROMPTS.items() for prompt in prompts]
STEPPED = [(model, prompt) for model in PROMPTS for prompt in ("p17", "p100")]
# The eager model and the plan flip the same roundings; of these two prompts the README's fp64 rows say no less.
FLIPPED = (("mini6", "p16"), ("sched40", "p33"))


@pytest.fixture(scope="module")
def engines(mini6_plan: Path, sched40_plan: Path) -> dict[str, Engine]:
    return {"mini6": dsv41c.load(mini6_plan), "sched40": dsv41c.load(sched40_plan)}


@cache
def golden(model: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / model / "outputs.safetensors")


def forced_run(engine: Engine, model: str, prompt: str) -> Completion:
    """The prompt, and the reference's tokens fed behind it where it has some."""
    tokens = golden(model).get(f"dec_{prompt}_pub.tokens")
    forced = tuple(tokens.tolist()) if tokens is not None else (0,)
    params = SamplingParams(max_new_tokens=len(forced), forced_tokens=forced, collect_logits=True, stop_at_eos=False)
    return engine.generate([golden(model)[f"{prompt}.ids"].tolist()], params)[0]


def assert_within_bound(ours: Tensor, want: Tensor) -> None:
    """The golden README's rule for whole models: most argmaxes agree, and the median row is close."""
    difference = (ours - want).abs().amax(-1)
    agreement = (ours.argmax(-1) == want.argmax(-1)).float().mean().item()
    assert agreement >= WHOLE_MODEL.argmax, f"argmax agrees in {agreement:.1%} of rows"
    assert difference.median() <= WHOLE_MODEL.median, f"median row differs by {difference.median():.3g}"


@pytest.mark.parametrize(("model", "prompt"), CASES)
def test_prefill(engines: dict[str, Engine], model: str, prompt: str) -> None:
    run, want = forced_run(engines[model], model, prompt), golden(model)[f"{prompt}.logits"]
    assert run.prefill_logits is not None
    assert_within_bound(run.prefill_logits, want)
    if (model, prompt) in FLIPPED:
        return
    difference = (run.prefill_logits - want).abs().amax(-1)
    assert difference.median() <= UNFLIPPED_LOGITS
    assert difference.max() <= NEAR_LOGITS.get((model, prompt), UNFLIPPED_LOGITS)


@pytest.mark.parametrize(("model", "prompt"), STEPPED)
def test_decode(engines: dict[str, Engine], model: str, prompt: str) -> None:
    run, want = forced_run(engines[model], model, prompt), golden(model)[f"dec_{prompt}_pub.logits"]
    assert run.decode_logits is not None
    assert_within_bound(run.decode_logits, want)
    difference = (run.decode_logits - want).abs().amax(-1)
    assert difference.max() <= STEP_LOGITS
    assert difference.median() <= STEP_MEDIAN


@pytest.mark.parametrize(("model", "prompt"), [("mini6", "p7"), ("mini6", "p17"), ("sched40", "p17")])
def test_caches(engines: dict[str, Engine], model: str, prompt: str) -> None:
    """Packed rows as the reference's values: windows, main KV and index keys bit for bit, compressor tails in fp32."""
    plan = engines[model].plan.path
    engine = dsv41c.load(plan, max_sequences=1)  # an engine of its own hands out pages and rings from 0 on
    ids = golden(model)[f"{prompt}.ids"].tolist()
    engine.generate([ids], SamplingParams(max_new_tokens=0, collect_logits=True))
    compared = 0
    for key, ours in cached_values(engine.config, engine.caches.tensors, len(ids)).items():
        want = golden(model).get(f"{prompt}.{key}")
        if want is None:
            continue
        compared += 1
        if key.startswith(("kv_state", "score_state")):
            assert torch.allclose(ours, want, rtol=1e-5, atol=1e-6), key
        else:
            assert torch.equal(ours, want), key
    assert compared >= 2 * len(engine.config.kv_source_layer_ids)


@pytest.mark.parametrize("rows", [1, 5, 16, 40])
def test_a_prompt_in_chunks_is_the_prompt_at_once(mini6_plan: Path, rows: int) -> None:
    engine, whole = dsv41c.load(mini6_plan, chunk_tokens=rows), golden("mini6")["p33.logits"]
    run = forced_run(engine, "mini6", "p33")
    assert run.prefill_logits is not None
    assert_within_bound(run.prefill_logits, whole)
    assert (run.prefill_logits - whole).abs().amax(-1).median() <= STEP_MEDIAN


@pytest.mark.parametrize("model", PROMPTS)
def test_a_batch_of_mixed_lengths_is_its_runs_one_by_one(engines: dict[str, Engine], model: str) -> None:
    """Forced along the same tokens; the rounding of a product may depend on the number of rows, so within the bound."""
    prompts = [golden(model)[f"{prompt}.ids"].tolist() for prompt in ("p1", "p2", "p17", "p33")]
    params = SamplingParams(max_new_tokens=4, forced_tokens=(5, 9, 2, 7), collect_logits=True, stop_at_eos=False)
    together = engines[model].generate(prompts, params)
    for prompt, run in zip(prompts, together, strict=True):
        alone = engines[model].generate([prompt], params)[0]
        assert run.prefill_logits is not None
        assert run.decode_logits is not None
        assert_within_bound(run.prefill_logits, alone.prefill_logits)
        assert_within_bound(run.decode_logits, alone.decode_logits)


def test_unused_cache_bytes_and_padded_rows_change_nothing(mini6_plan: Path) -> None:
    """Pages, rings and rows nobody wrote hold NaN and 0x7F; 13 rows are padded to 16."""
    ids = golden("mini6")["p33.ids"].tolist()[:13]
    params = SamplingParams(max_new_tokens=3, forced_tokens=(5, 9, 2), collect_logits=True, stop_at_eos=False)
    clean, poisoned = (
        dsv41c.load(mini6_plan, row_multiple=16, poison=poison).generate([ids], params)[0] for poison in (False, True)
    )
    for ours, want in zip(
        (poisoned.prefill_logits, poisoned.decode_logits), (clean.prefill_logits, clean.decode_logits), strict=True
    ):
        assert torch.equal(ours, want)


@pytest.mark.parametrize("length", range(1, 21))
def test_every_short_length_runs(engines: dict[str, Engine], length: int) -> None:
    ids = golden("mini6")["p100.ids"].tolist()[:length]
    run = engines["mini6"].generate([ids], SamplingParams(max_new_tokens=2, stop_at_eos=False))[0]
    assert len(run.tokens) == 2
