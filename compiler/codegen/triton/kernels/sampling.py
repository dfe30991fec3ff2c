"""From logits to a token: penalties, cuts, draws and log-probabilities, a row a request (runtime/sampling.py).

    penalize    repetition, presence and frequency penalties at the tokens of a request
    cut         top-k and top-p as one threshold: which logits may be drawn, and how many of those that equal it
    draw        the token: the best one, or one drawn among those that the cut keeps
    logprobs    the log-probability of a token, and the best ones

Logits are ordered as integers of their bits, zeros of both signs alike, so a threshold is found exactly: two bits a
pass over the row, by the number of logits from it on or by their probabilities' sum. Of equal logits the lower ids come
first.
A draw races exponentials: the random number of a token comes from its id, the request's seed and how many it drew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

_STEPS = tl.constexpr(16)  # of two bits each
_LOWEST = tl.constexpr(float("-inf"))


@triton.jit
def penalize_kernel(
    ids_ptr,
    counts_ptr,
    repetition_ptr,
    presence_ptr,
    frequency_ptr,
    judged_ptr,
    n_ids,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Changes judged fp32 [rows, V], a copy of the logits, at ids int32 [rows, n_ids], each once, -1 for none.

    counts int32 [rows, n_ids]: how often the id is a new token, 0 for one of the prompt alone; penalties fp32 [rows].
    """
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    listed = place < n_ids
    token = tl.load(ids_ptr + row * n_ids + place, mask=listed, other=-1)
    count = tl.load(counts_ptr + row * n_ids + place, mask=listed, other=0)
    known = token >= 0
    at = judged_ptr + row * V + tl.where(known, token, 0)
    logit = tl.load(at, mask=known, other=0.0)

    # --- repetition
    factor = tl.load(repetition_ptr + row)
    divided = tl.div_rn(logit, tl.broadcast_to(factor, logit.shape))
    logit = tl.where(logit > 0, divided, logit * factor)

    # --- presence and frequency
    taken = tl.load(presence_ptr + row) + tl.load(frequency_ptr + row) * count.to(tl.float32)
    tl.store(at, tl.where(count > 0, logit - taken, logit), mask=known)


@triton.jit
def cut_kernel(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    highest_ptr,
    threshold_ptr,
    ties_ptr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """logits fp32 [rows, V] to highest fp32, threshold int32 and ties int32, all [rows].

    temperature, top_p fp32 and top_k int32 [rows]; 0 and 1 cut nothing. What may be drawn are the logits whose order is
    above the threshold's, as uint32, and the first `ties` of those that equal it.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * V
    temperature = _divisor(tl.load(temperature_ptr + row))
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    highest = _highest(logits_ptr, V, BLOCK)

    # --- the k-th largest, and how many of its equals fit
    none = tl.zeros((), tl.uint32)
    steps = tl.where((top_k > 0) & (top_k < V), _STEPS, 0)
    threshold = _threshold(logits_ptr, none, top_k.to(tl.float32), steps, highest, temperature, False, V, BLOCK)
    above = _weight_above(logits_ptr, threshold, highest, temperature, False, V, BLOCK)
    ties = tl.where(steps > 0, top_k - above.to(tl.int32), V)

    # --- the last of the fewest that reach p
    mass_above = _weight_above(logits_ptr, threshold, highest, temperature, True, V, BLOCK)
    at_threshold = _probability(_logit(threshold), highest, temperature)
    # Without a top-k no logit has the lowest order of all, and its ties weigh nothing.
    whole = mass_above + tl.where(steps > 0, ties.to(tl.float32) * at_threshold, 0.0)
    wanted = whole * top_p
    steps = tl.where(top_p < 1, _STEPS, 0)
    nucleus = _threshold(logits_ptr, threshold, wanted, steps, highest, temperature, True, V, BLOCK)
    if top_p < 1:
        before = _weight_above(logits_ptr, nucleus, highest, temperature, True, V, BLOCK)
        fitting = tl.ceil((wanted - before) / _probability(_logit(nucleus), highest, temperature)).to(tl.int32)
        fitting = tl.maximum(fitting, 1)
        ties = tl.where(nucleus == threshold, tl.minimum(ties, fitting), fitting)
        threshold = nucleus
    tl.store(highest_ptr + row, highest)
    tl.store(threshold_ptr + row, threshold.to(tl.int32, bitcast=True))
    tl.store(ties_ptr + row, ties)


@triton.jit
def draw_kernel(
    logits_ptr,
    temperature_ptr,
    highest_ptr,
    threshold_ptr,
    ties_ptr,
    seed_ptr,
    drawn_ptr,
    token_ptr,
    GREEDY: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """logits fp32 [rows, V] to token int32 [rows]: what `cut_kernel` keeps, drawn; where temperature is 0, the best.

    seed int64 and drawn int32 [rows]: of the request. GREEDY: always the best, and all but logits is read by nobody.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * V
    if not GREEDY:
        draws = tl.load(temperature_ptr + row) > 0
        temperature = _divisor(tl.load(temperature_ptr + row))
        highest, ties = tl.load(highest_ptr + row), tl.load(ties_ptr + row)
        threshold = tl.load(threshold_ptr + row).to(tl.uint32, bitcast=True)
        seed, drawn = tl.load(seed_ptr + row), tl.load(drawn_ptr + row)
    best = tl.full((), _LOWEST, tl.float32)
    token = tl.zeros((), tl.int32)
    equal_before = tl.zeros((), tl.int32)
    for first in range(0, V, BLOCK):
        place = first + tl.arange(0, BLOCK)
        score = tl.load(logits_ptr + place, mask=place < V, other=_LOWEST)
        if not GREEDY:
            order = _order(score)
            equal = (order == threshold) & (place < V)
            rank = equal_before + tl.cumsum(equal.to(tl.int32), axis=0)
            equal_before += tl.sum(equal.to(tl.int32), axis=0)
            kept = (order > threshold) | (equal & (rank <= ties))
            random, _, _, _ = tl.philox(seed, place.to(tl.uint32), drawn.to(tl.uint32) + place.to(tl.uint32) * 0, 0, 0)
            arrival = -tl.log(tl.uint_to_uniform_float(random))
            raced = tl.where(kept, tl.div_rn(_probability(score, highest, temperature), arrival), _LOWEST)
            score = tl.where(draws, raced, score)
        block_best, where = tl.max(score, axis=0, return_indices=True, return_indices_tie_break_left=True)
        token = tl.where(block_best > best, first + where, token)
        best = tl.maximum(best, block_best)
    tl.store(token_ptr + row, token)


@triton.jit
def logprobs_kernel(
    logits_ptr,
    token_ptr,
    logprob_ptr,
    top_ids_ptr,
    top_ptr,
    n_top,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """logits fp32 [rows, V] and token int32 [rows] to logprob fp32 [rows] and the n_top best ones, in order.

    top_ids int32 and top fp32 [rows, n_top]: of equals the lower id first.
    """
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * V
    highest = _highest(logits_ptr, V, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        place = first + tl.arange(0, BLOCK)
        total += tl.exp(tl.load(logits_ptr + place, mask=place < V, other=_LOWEST) - highest)
    normalizer = tl.log(tl.sum(total, axis=0))
    chosen = tl.load(logits_ptr + tl.load(token_ptr + row))
    tl.store(logprob_ptr + row, (chosen - highest) - normalizer)

    # --- the best that come after the one before
    last = tl.full((), float("inf"), tl.float32)
    last_id = tl.full((), -1, tl.int32)
    for number in range(n_top):
        best = tl.full((), _LOWEST, tl.float32)
        token = tl.zeros((), tl.int32)
        for first in range(0, V, BLOCK):
            place = first + tl.arange(0, BLOCK)
            logit = tl.load(logits_ptr + place, mask=place < V, other=_LOWEST)
            later = (logit < last) | ((logit == last) & (place > last_id))
            logit = tl.where(later, logit, _LOWEST)
            block_best, where = tl.max(logit, axis=0, return_indices=True, return_indices_tie_break_left=True)
            token = tl.where(block_best > best, first + where, token)
            best = tl.maximum(best, block_best)
        tl.store(top_ids_ptr + row * n_top + number, token)
        tl.store(top_ptr + row * n_top + number, (best - highest) - normalizer)
        last, last_id = best, token


@triton.jit
def _highest(logits_ptr, V: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit of a row."""
    highest = tl.full((BLOCK,), _LOWEST, tl.float32)
    for first in range(0, V, BLOCK):
        place = first + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(logits_ptr + place, mask=place < V, other=_LOWEST))
    return tl.max(highest, axis=0)


@triton.jit
def _order(logit):
    """fp32 to uint32 of the same order."""
    # Adding zero makes zeros of both signs one number.
    bits = (logit + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, ~bits, bits | 0x80000000)


@triton.jit
def _logit(order):
    """The inverse of `_order`, for one number."""
    bits = tl.where(order >> 31 != 0, order & 0x7FFFFFFF, ~order)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _divisor(temperature):
    """The temperature; 1 for rows that do not draw, whose probabilities nobody reads."""
    return tl.where(temperature > 0, temperature, 1.0)


@triton.jit
def _probability(logit, highest, temperature):
    """What a logit weighs in the softmax; the best weighs 1."""
    return tl.exp(tl.div_rn(logit - highest, tl.broadcast_to(temperature, logit.shape)))


@triton.jit
def _weights(logits_ptr, place, highest, temperature, MASS: tl.constexpr, V: tl.constexpr):
    """The order of a block of logits, and what each adds: its probability where MASS, else 1."""
    logit = tl.load(logits_ptr + place, mask=place < V, other=_LOWEST)
    weight = _probability(logit, highest, temperature) if MASS else tl.full(logit.shape, 1.0, tl.float32)
    return _order(logit), tl.where(place < V, weight, 0.0)


@triton.jit
def _weight_above(
    logits_ptr, threshold, highest, temperature, MASS: tl.constexpr, V: tl.constexpr, BLOCK: tl.constexpr
):
    """How much the logits above a threshold weigh together."""
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, V, BLOCK):
        place = first + tl.arange(0, BLOCK)
        order, weight = _weights(logits_ptr, place, highest, temperature, MASS, V)
        total += tl.where(order > threshold, weight, 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _threshold(
    logits_ptr,
    floor,
    wanted,
    steps,
    highest,
    temperature,
    MASS: tl.constexpr,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The largest order from which on the logits weigh `wanted` or more, and no less than floor; floor for no steps."""
    threshold = tl.zeros((), tl.uint32)
    for step in range(steps):
        unit = (tl.full((), 1, tl.uint32) << (30 - 2 * step)).to(tl.uint32)
        one, two, three = threshold | unit, threshold | (unit * 2), threshold | (unit * 3)
        from_one = tl.zeros((BLOCK,), tl.float32)
        from_two = tl.zeros((BLOCK,), tl.float32)
        from_three = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, V, BLOCK):
            place = first + tl.arange(0, BLOCK)
            order, weight = _weights(logits_ptr, place, highest, temperature, MASS, V)
            from_one += tl.where(order >= one, weight, 0.0)
            from_two += tl.where(order >= two, weight, 0.0)
            from_three += tl.where(order >= three, weight, 0.0)
        threshold = tl.where((one <= floor) | (tl.sum(from_one, axis=0) >= wanted), one, threshold)
        threshold = tl.where((two <= floor) | (tl.sum(from_two, axis=0) >= wanted), two, threshold)
        threshold = tl.where((three <= floor) | (tl.sum(from_three, axis=0) >= wanted), three, threshold)
    return tl.maximum(threshold, floor)


_TILES = (Tile({"BLOCK": 4096}, warps=8, stages=1), Tile({"BLOCK": 1024}, warps=4, stages=1))
_ROWS = (("n_rows", 1),)


def penalize(name: str, vocabulary: int) -> Kernel:
    """The penalties."""
    arguments = {**dict.fromkeys(("ids_ptr", "counts_ptr"), "*i32")}
    arguments |= dict.fromkeys(("repetition_ptr", "presence_ptr", "frequency_ptr", "judged_ptr"), "*fp32")
    holes: dict[str, Hole] = {"V": vocabulary}
    tiles, grid = (Tile({"BLOCK": 256}),), (*_ROWS, ("n_ids", "BLOCK"))
    given = {**arguments, "n_ids": "i32"}
    return Kernel(name, "sampling", "penalize_kernel", given, holes, tiles, grid, _UNALIGNED, sizes=("n_rows",))


def cut(name: str, vocabulary: int) -> Kernel:
    """The threshold of top-k and top-p."""
    arguments = {"logits_ptr": "*fp32", "temperature_ptr": "*fp32", "top_k_ptr": "*i32", "top_p_ptr": "*fp32"}
    arguments |= {"highest_ptr": "*fp32", "threshold_ptr": "*i32", "ties_ptr": "*i32"}
    return _of_rows(name, "cut_kernel", arguments, {"V": vocabulary})


def draw(name: str, vocabulary: int, greedy: bool = False) -> Kernel:
    """The token."""
    arguments = {"logits_ptr": "*fp32", "temperature_ptr": "*fp32", "highest_ptr": "*fp32", "threshold_ptr": "*i32"}
    arguments |= {"ties_ptr": "*i32", "seed_ptr": "*i64", "drawn_ptr": "*i32", "token_ptr": "*i32"}
    return _of_rows(name, "draw_kernel", arguments, {"GREEDY": greedy, "V": vocabulary})


def logprobs(name: str, vocabulary: int) -> Kernel:
    """Log-probabilities."""
    arguments = {"logits_ptr": "*fp32", "token_ptr": "*i32", "logprob_ptr": "*fp32"}
    arguments |= {"top_ids_ptr": "*i32", "top_ptr": "*fp32", "n_top": "i32"}
    return _of_rows(name, "logprobs_kernel", arguments, {"V": vocabulary})


# One number a row, and rows may be taken from the middle of a batch.
_UNALIGNED = ("repetition_ptr", "presence_ptr", "frequency_ptr")


def _of_rows(name: str, function: str, arguments: dict[str, str], holes: dict[str, Hole]) -> Kernel:
    by_row = tuple(pointer for pointer, kind in arguments.items() if kind[0] == "*" and pointer != "logits_ptr")
    return Kernel(name, "sampling", function, arguments, holes, _TILES, _ROWS, by_row, sizes=("n_rows",))


def kernels(config: ModelConfig) -> tuple[Kernel, ...]:
    """The sampling of a model."""
    vocabulary = config.vocab_size
    return (
        penalize("penalize", vocabulary),
        cut("cut", vocabulary),
        draw("draw", vocabulary),
        draw("draw_greedy", vocabulary, greedy=True),
        logprobs("logprobs", vocabulary),
    )
