"""Bounded prefill of the compiled plans: exact where there is nothing to leave out, the same in chunks and batches."""

from functools import cache as once
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tolerances import STEP_MEDIAN
from torch import Tensor

import dsv41c
from dsv41c.errors import RequestError
from dsv41c.runtime.batch import Piece, step_inputs
from dsv41c.runtime.bounded import ENCODE, TAIL
from dsv41c.runtime.engine import STEP, Engine
from dsv41c.runtime.replay import ENCODE_REPLAY, Replay
from dsv41c.runtime.requests import Request
from dsv41c.runtime.sampling import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden"
WINDOW = 16  # of both models
NO_STOP = SamplingParams(max_new_tokens=4, forced_tokens=(5, 9, 2, 7), stop_at_eos=False)


@once
def prompt_of(model: str, length: int) -> list[int]:
    ids: list[int] = load_file(GOLDEN / model / "outputs.safetensors")["p100.ids"].tolist()
    return ids[:length]


def logits_of(engine: Engine, prompts: list[list[int]]) -> list[list[Tensor]]:
    """The logits that every token of each request was chosen from, tokens being forced."""
    seen: list[list[Tensor]] = [[] for _ in prompts]
    original = engine._take

    def take(request: Request, logits: Tensor) -> None:
        seen[request.number].append(logits.clone())
        original(request, logits)

    engine._take = take  # type: ignore[method-assign]
    try:
        engine.generate(prompts, NO_STOP)
    finally:
        del engine._take  # type: ignore[method-assign]
    return seen


def ran(engine: Engine) -> list[str]:
    """Records the programs that an engine calls from now on."""
    names: list[str] = []
    original = engine.executor.run

    def run(program: str, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        names.append(program)
        return original(program, inputs)

    engine.executor.run = run  # type: ignore[assignment, method-assign]
    return names


@pytest.mark.parametrize("length", [1, 2, 7, 15, 16])
def test_encode_and_tail_give_the_bits_of_the_step(mini6_plan: Path, length: int) -> None:
    """Called directly, for prompts that are all tail: logits, the drafts' input, every cache."""
    runs = []
    for programs in ((STEP,), (ENCODE, TAIL)):
        engine = dsv41c.load(mini6_plan, max_sequences=1)
        allotment = engine.caches.allot(length)
        inputs = step_inputs([Piece(allotment, 0, prompt_of("mini6", length), range(length))])
        outputs: dict[str, Tensor] = {}
        for program in programs:
            outputs = engine.executor.run(program, inputs | outputs)
        runs.append({name: outputs[name] for name in ("logits", "main_hidden")} | engine.caches.tensors)
    for name, want in runs[0].items():
        assert torch.equal(runs[1][name], want), name


@pytest.mark.parametrize("model", ["mini6", "sched40"])
def test_prompts_within_a_window_are_exact(model: str, request: pytest.FixtureRequest) -> None:
    plan = request.getfixturevalue(f"{model}_plan")
    prompts = [prompt_of(model, length) for length in (1, 3, 16)]
    exact, bounded = dsv41c.load(plan), dsv41c.load(plan, prefill="bounded")
    names = ran(bounded)
    for ours, want in zip(logits_of(bounded, prompts), logits_of(exact, prompts), strict=True):
        assert torch.equal(torch.stack(ours), torch.stack(want))
    assert set(names) == {STEP}


def test_a_prompt_in_chunks_and_a_batch_is_the_prompt_at_once(mini6_plan: Path) -> None:
    """Prompts around one and several windows, encoded in chunks of 1, 5, 16 and 40 rows, four at a time; what is
    kept between chunks is the last window's rows, so all runs agree up to the rounding of products of other sizes."""
    prompts = [prompt_of("mini6", length) for length in (17, 33, 5, 90)]
    alone = dsv41c.load(mini6_plan, prefill="bounded")
    whole = [logits_of(alone, [prompt])[0] for prompt in prompts]
    for rows in (1, 5, 16, 40, 512):
        engine = dsv41c.load(mini6_plan, prefill="bounded", poison=True, chunk_tokens=rows)
        names = ran(engine)
        for ours, want in zip(logits_of(engine, prompts), whole, strict=True):
            assert len(ours) == 5 - 1
            difference = (torch.stack(ours) - torch.stack(want)).abs().amax(-1)
            assert difference.median() <= STEP_MEDIAN, f"{rows} rows: {difference}"
        assert {ENCODE, TAIL, STEP} == set(names)


def test_a_tail_follows_the_last_chunk_only(mini6_plan: Path) -> None:
    engine = dsv41c.load(mini6_plan, prefill="bounded", chunk_tokens=40)
    names = ran(engine)
    engine.generate([prompt_of("mini6", 90), prompt_of("mini6", 20)], SamplingParams(max_new_tokens=2))
    assert names == [ENCODE, ENCODE, ENCODE, TAIL, STEP]


def test_the_tail_attends_to_nothing_before_its_rows(mini6_plan: Path) -> None:
    """Rings handed out full of NaN and 0x7F change no bit."""
    prompts = [prompt_of("mini6", 45), prompt_of("mini6", 30)]
    clean, poisoned = (dsv41c.load(mini6_plan, prefill="bounded", poison=poison) for poison in (False, True))
    for ours, want in zip(logits_of(poisoned, prompts), logits_of(clean, prompts), strict=True):
        assert torch.equal(torch.stack(ours), torch.stack(want))


def test_exact_windows_are_those_of_an_exact_prefill(mini6_plan: Path) -> None:
    """A tail of 16 + 2 * 15 rows for three layers: every bit of prompts beyond it, in chunks, and of what follows them.
    One row less moves the first token's logits."""
    prompts = [prompt_of("mini6", length) for length in (46, 47, 100)]
    want = logits_of(dsv41c.load(mini6_plan), prompts)
    engine = dsv41c.load(mini6_plan, prefill="bounded", exact_window=True, chunk_tokens=50, poison=True)
    assert engine.bounded is not None
    assert engine.bounded.rows == 46
    names = ran(engine)
    for ours, exact in zip(logits_of(engine, prompts), want, strict=True):
        assert torch.equal(torch.stack(ours), torch.stack(exact))
    assert {ENCODE, TAIL, STEP} == set(names)
    engine.bounded.rows -= 1
    assert not torch.equal(logits_of(engine, prompts[1:2])[0][0], want[1][0])


def test_a_replay_that_leaves_nothing_out_is_encode(mini6_plan: Path) -> None:
    """With the lists that `encode` computes for itself, its replay gives its bits, by the same kernels."""
    runs = []
    for program in (ENCODE, ENCODE_REPLAY):
        engine = dsv41c.load(mini6_plan, max_sequences=1)
        pieces = [Piece(engine.caches.allot(41), 0, prompt_of("mini6", 41), [40])]
        inputs = step_inputs(pieces)
        replay = Replay(engine.plan, WINDOW).inputs(pieces, inputs) if program == ENCODE_REPLAY else {}
        outputs = engine.executor.run(program, inputs | replay)
        kernels = [launch.kernel for launch in engine.plan.programs[program].launches]
        runs.append((outputs | engine.caches.tensors, kernels))
    (want, kernels), (ours, replayed) = runs
    assert replayed == kernels
    for name, value in want.items():
        assert torch.equal(ours[name], value), name


def test_padded_rows_change_nothing(mini6_plan: Path) -> None:
    prompts = [prompt_of("mini6", 45)]
    plain, padded = (dsv41c.load(mini6_plan, prefill="bounded", row_multiple=rows) for rows in (1, 64))
    ours, want = torch.stack(logits_of(padded, prompts)[0]), torch.stack(logits_of(plain, prompts)[0])
    assert (ours - want).abs().amax(-1).median() <= STEP_MEDIAN


def test_more_tails_than_rows_take_several_calls(mini6_plan: Path) -> None:
    engine = dsv41c.load(mini6_plan, prefill="bounded", max_sequences=40)
    names = ran(engine)
    engine.generate([prompt_of("mini6", 20)] * 40, SamplingParams(max_new_tokens=1))
    assert names.count(TAIL) == 2  # 512 rows are 32 tails


def test_logits_of_a_prompt_are_refused(mini6_plan: Path) -> None:
    engine = dsv41c.load(mini6_plan, prefill="bounded")
    with pytest.raises(RequestError, match=r"prompt 0 asks for the logits of all .* prefill exact") as caught:
        engine.generate([[5, 9, 2]], SamplingParams(max_new_tokens=1, collect_logits=True))
    assert "\n" not in str(caught.value)
    with pytest.raises(RequestError, match="exact_window is for a bounded prefill, and prefill is exact"):
        dsv41c.load(mini6_plan, exact_window=True)
    with pytest.raises(RequestError, match="prefill 'fast' is unknown; supported are exact, bounded"):
        dsv41c.load(mini6_plan, prefill="fast")
