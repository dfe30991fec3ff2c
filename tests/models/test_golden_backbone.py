"""The eager backbone on the golden prompts: layer by layer on golden streams, then whole, then decode steps.

The layer test is the strict one. A whole model multiplies single rounding flips, so a whole run is compared tightly
only where it has none, and by the README's rule for whole models elsewhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from comparisons import (
    Changed,
    assert_absolute,
    assert_bits,
    assert_layer,
    assert_median_row,
    assert_relative,
    assert_rows,
    assert_whole_logits,
    assert_whole_state,
)
from golden_model import (
    CASES,
    DEEP,
    KINDS,
    Golden,
    Record,
    cached_values,
    golden,
    golden_state,
    on_output,
    prefill,
    recorded,
)
from tolerances import (
    FLIPPED_ROUTE,
    FP32_RELATIVE,
    LOOSE_SELECTION_ULPS,
    NEAR_LOGITS,
    NEAR_SELECTIONS,
    STEP_LOGITS,
    STEP_MEDIAN,
    UNFLIPPED_LOGITS,
    WHOLE_MODEL,
)
from torch import Tensor

from dsv41c.models import ops

# Which prompts flip a rounding was seen here; the README says the same of mini6 p17 and p33 by their fp64 rows.
UNFLIPPED = [
    *(("mini6", prompt) for prompt in ("p1", "p2", "p3", "p15", "p17")),
    *(("sched40", prompt) for prompt in ("p1", "p2", "p17")),
]
FLIPPED = [case for case in CASES if case not in UNFLIPPED and case not in NEAR_LOGITS]
WATCHED = {
    "engram": ("x_engram",),
    "attn_norm": ("attn_in",),
    "attn": ("attn_out",),
    "ffn_norm": ("ffn_in",),
    "ffn": ("ffn_out",),
    "hc_attn": ("hc_attn.pre", "hc_attn.post", "hc_attn.comb"),
    "hc_ffn": ("hc_ffn.pre", "hc_ffn.post", "hc_ffn.comb"),
    "": ("x_out", "pre_mix_out"),
}
PLAIN_STATE = ("kv_state", "score_state")  # fp32 values, sums in an order of our own


def pool_mask(model: Golden, record: Record, entries: int) -> Tensor:
    """The candidate pool of each row as a mask over entries."""
    source, block = model.config.candidate_source_layer_id, model.config.candidate_block_size
    return (record.blocks[source].unsqueeze(-1) == torch.arange(entries) // block).any(1)


def padded(expected: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(expected.to(ops.LIST), (0, width - expected.shape[1]), value=-1)


def selections(model: Golden, record: Record, want: dict[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Every recorded selection with its expected value: top-k sets, routes as sets, candidate masks."""
    for key, ours in record.values.items():
        if key.startswith("topk") and key in want:
            yield key, ours, padded(want[key], ours.shape[1])
        if key.startswith("route_i") and key in want:
            yield key, ours.sort(-1).values, want[key].long().sort(-1).values
    key = f"cand.layers.{model.config.candidate_source_layer_id}"
    mask = want[key].bool()
    yield key, pool_mask(model, record, mask.shape[1]), mask


def hashed(model: Golden, record: Record) -> Tensor:
    return torch.stack([record.values[f"hash.layers.{layer}"] for layer in model.config.engram_layer_ids], 1)


# --- whole prompts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "prompt"), CASES)
def test_hashes(kind: str, prompt: str) -> None:
    model, run = golden(kind), prefill(kind, prompt)
    assert torch.equal(hashed(model, run.record), model.outputs[f"{prompt}.engram_hash"])


@pytest.mark.parametrize(("kind", "prompt"), UNFLIPPED)
def test_unflipped_prompt(kind: str, prompt: str) -> None:
    model, run = golden(kind), prefill(kind, prompt)
    want = model.under(prompt)
    for key, ours, expected in selections(model, run.record, want):
        assert torch.equal(ours, expected), key
    for key, ours in run.record.values.items():
        if key.startswith("route_w") and key in want:
            order = run.record.values[key.replace("_w", "_i")], want[key.replace("_w", "_i")].long()
            assert torch.equal(*order), "routes come best first"
            assert_relative(ours, want[key], FLIPPED_ROUTE, key)
    for key, ours in stated(model, run.session.caches, prompt).items():
        compare = partial(assert_rows, bound=FP32_RELATIVE) if key.startswith(PLAIN_STATE) else assert_bits
        compare(ours, want[key], what=key)
    assert_bits(run.main_hidden, want["main_hidden"])
    assert_absolute(run.logits, want["logits"], UNFLIPPED_LOGITS)


@pytest.mark.parametrize(("kind", "prompt"), NEAR_LOGITS)
def test_prompt_with_few_flips(kind: str, prompt: str) -> None:
    """Most rows are bit for bit the reference's; the others stay close."""
    model, run = golden(kind), prefill(kind, prompt)
    want = model.under(prompt)
    changed: dict[str, Changed] = {}
    for key, ours, expected in selections(model, run.record, want):
        changed.setdefault(key.split(".")[0], Changed()).add(ours, expected)
    for key, count in changed.items():
        count.check(NEAR_SELECTIONS if key == "topk" else 0, key)
    for key, ours in stated(model, run.session.caches, prompt).items():
        assert_median_row(ours, want[key], FP32_RELATIVE if key.startswith(PLAIN_STATE) else 0, key)
    assert_median_row(run.main_hidden, want["main_hidden"], 0)
    difference = (run.logits - want["logits"]).abs().amax(-1)
    assert difference.median() <= UNFLIPPED_LOGITS
    assert difference.max() <= NEAR_LOGITS[kind, prompt]
    assert torch.equal(run.logits.argmax(-1), want["logits"].argmax(-1))


@pytest.mark.parametrize(("kind", "prompt"), FLIPPED)
def test_flipped_prompt(kind: str, prompt: str) -> None:
    model, run = golden(kind), prefill(kind, prompt)
    want = model.under(prompt)
    changed: dict[str, Changed] = {}
    for key, ours, expected in selections(model, run.record, want):
        changed.setdefault(key.split(".")[0], Changed()).add(ours, expected)
    for key, count in changed.items():
        count.check(WHOLE_MODEL.selections, key)
    for key, ours in stated(model, run.session.caches, prompt).items():
        assert_whole_state(ours, want[key], key)
    assert_whole_state(run.main_hidden, want["main_hidden"])
    assert_whole_logits(run.logits, want["logits"])


def stated(model: Golden, caches: dict[str, Tensor], prompt: str) -> dict[str, Tensor]:
    """The cached values that the golden data states for a prompt: all but some prompts' windows."""
    values, want = cached_values(model.config, caches, len(model.ids(prompt))), model.under(prompt)
    missing = [key for key in values if key not in want]
    assert all(key.startswith("win.") for key in missing), missing
    return {key: value for key, value in values.items() if key in want}


# --- single layers on golden streams --------------------------------------------------------------------------------


@contextmanager
def golden_streams(model: Golden, prefix: str) -> Iterator[set[str]]:
    """While open, a layer whose predecessor's output is known gets that output; yields "layers.N" of those layers."""
    fed, hooks = {"layers.0"}, []
    for number, layer in enumerate(model.backbone.layers):
        before = f"{prefix}.layers.{number - 1}"
        inputs = [
            model.outputs[key] for part in ("x_out", "pre_mix_out") if (key := f"{before}.{part}") in model.outputs
        ]
        if len(inputs) == 2:
            hooks.append(layer.register_forward_pre_hook(partial(_replace_streams, inputs)))
            fed.add(f"layers.{number}")
    try:
        yield fed
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def watched(model: Golden) -> Iterator[dict[str, Tensor]]:
    """While open, keeps what the sublayers give, by the keys of the golden data's "deep" part."""
    seen: dict[str, Tensor] = {}
    hooks = [on_output(model.backbone.norm, partial(_keep, seen, ["final_hidden"]))]
    for number, layer in enumerate(model.backbone.layers):
        for path, names in WATCHED.items():
            if path != "engram" or hasattr(layer, "engram"):
                keys = [f"layers.{number}.{name}" for name in names]
                hooks.append(on_output(layer.get_submodule(path), partial(_keep, seen, keys)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _replace_streams(inputs: list[Tensor], _module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (*inputs, *args[2:])


def _keep(seen: dict[str, Tensor], keys: list[str], output: Any) -> None:
    seen.update(zip(keys, output if isinstance(output, tuple) else (output,), strict=False))


@pytest.mark.parametrize("kind", KINDS)
def test_layers_on_golden_streams(kind: str) -> None:
    model, prompt = golden(kind), DEEP[kind]
    want, deep = model.under(prompt), model.under(f"{prompt}.deep")
    assert all(gap.min() > LOOSE_SELECTION_ULPS for key, gap in want.items() if key.startswith("gap_")), (
        "no row of these prompts may select differently"
    )
    session = model.session()
    with golden_streams(model, f"{prompt}.deep") as fed, watched(model) as seen, recorded(model.backbone) as record:
        session.forward({0: model.ids(prompt)})
    last = f"layers.{model.config.num_hidden_layers - 1}"
    compared = [key for key in seen if key in deep and (last if key == "final_hidden" else layer_of(key)) in fed]
    assert len(compared) > len(fed)
    for key in compared:
        assert_layer(seen[key], deep[key], key)
    for key, ours, expected in selections(model, record, want):
        if layer_of(key) in fed:
            assert torch.equal(ours, expected), key
    for key, ours in stated(model, session.caches, prompt).items():
        if layer_of(key) in fed and want[key].numel():
            assert_layer(ours, want[key], key)


def layer_of(key: str) -> str:
    """The "layers.N" in a key."""
    return ".".join(key[key.index("layers.") :].split(".")[:2])


# --- decode steps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "prompt"), [("mini6", "p17"), ("mini6", "p100"), ("sched40", "p17")])
def test_decode_from_the_golden_state(kind: str, prompt: str) -> None:
    """Teacher-forced steps from caches with the reference's values; the first step has nothing to flip."""
    model, session = golden(kind), golden_state(kind, prompt)
    want = model.under(f"dec_{prompt}_pub")
    changed: dict[str, Changed] = {}
    logits, hidden, hashes = [], [], []
    for step, token in enumerate(want["tokens"].tolist()):
        with recorded(model.backbone) as record, watched(model) as seen:
            given, main_hidden = session.forward({0: [token]})
        at = {key: want[key][[step]] for key in want if key.startswith(("topk", "cand"))}
        for key, ours, expected in selections(model, record, at):
            if key.startswith("cand"):  # a step's pool ends with its newest entry; the candidate source has ratio 1
                ours = ours & (torch.arange(ours.shape[1]) < session.lengths[0])
            changed.setdefault(key.split(".")[0], Changed()).add(ours, expected)
        if step == 0:
            assert not any(count.rows for count in changed.values()), changed
            for key, expected in model.under(f"dec_{prompt}_pub.s0.deep").items():
                if key.startswith("layers."):
                    assert_layer(seen[key], expected, key)
        logits.append(given[0])
        hidden.append(main_hidden)
        hashes.append(hashed(model, record))
    assert torch.equal(torch.cat(hashes), want["engram_hash"])
    assert_absolute(logits[0][0], want["logits"][0], UNFLIPPED_LOGITS)
    assert_bits(hidden[0], want["main_hidden"][:1])
    assert_steps(torch.cat(logits), want["logits"], is_exact=(kind, prompt) == ("sched40", "p17"))
    assert_whole_state(torch.cat(hidden), want["main_hidden"])
    for key, count in changed.items():
        count.check(WHOLE_MODEL.selections, key)
    for key, ours in cached_values(model.config, session.caches, session.lengths[0]).items():
        assert_whole_state(ours, want[f"end.{key}"], key)


def test_long_decode_of_sched40() -> None:
    """The golden data lacks the windows after p100, so the steps follow our own prefill."""
    model, session = golden("sched40"), golden("sched40").session()
    want = model.under("dec_p100_pub")
    session.forward({0: model.ids("p100")})
    logits = [session.forward({0: [token]})[0][0] for token in want["tokens"].tolist()]
    assert_steps(torch.cat(logits), want["logits"], is_exact=False)


def assert_steps(ours: Tensor, expected: Tensor, is_exact: bool) -> None:
    """Logits fp32 [steps, vocab]: equal where nothing flips, else as close as prefill and decode themselves."""
    difference = (ours - expected).abs().amax(-1)
    assert difference.max() <= (UNFLIPPED_LOGITS if is_exact else STEP_LOGITS)
    assert difference.median() <= STEP_MEDIAN
    assert_whole_logits(ours, expected)
