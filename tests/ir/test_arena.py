"""Places of values in one buffer: what is live at the same time does not overlap, and little is left between."""

import random

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.ir.arena import ALIGNMENT, arena_of
from dsv41c.ir.builder import FunctionBuilder
from dsv41c.ir.transient import launches_of, transient_peak
from dsv41c.ir.types import TensorType


def rows(width: int) -> TensorType:
    return TensorType.of(["T", width], "f32")


def random_program(seed: int) -> FuncOp:
    """Forty launches on one to three of the last eight values, of many sizes."""
    rng = random.Random(seed)
    b = FunctionBuilder("step", {"x": rows(4)}, {"T": (1, 64)})
    values: list[SSAValue] = list(b.args.values())
    for _ in range(40):
        operands = rng.sample(values[-8:], min(len(values), rng.randint(1, 3)))
        values += b.launch("any", operands, [rows(64 * rng.randint(1, 30)) for _ in range(rng.randint(1, 2))])
    return b.finish({"y": values[-1]})


def lifetimes(func: FuncOp) -> dict[SSAValue, set[int]]:
    """The launches during which each value must keep its bytes, counted anew for the test."""
    launches = launches_of(func)
    found = {value: {place} for place, op in enumerate(launches) for value in op.results}
    for value, places in found.items():
        last = max((launches.index(use.operation) for use in value.uses if use.operation in launches), default=-1)
        last = len(launches) if any(use.operation not in launches for use in value.uses) else last
        places.update(range(min(places), last + 1))
    return found


def test_live_values_never_overlap() -> None:
    for seed in range(20):
        func = random_program(seed)
        arena, live = arena_of(func, {"T": 8}), lifetimes(func)
        sizes = {value: 8 * 4 * value.type.dims[1] for value in live}  # type: ignore[attr-defined]  # all are tensors
        assert set(arena.offsets) == set(live)
        assert all(offset % ALIGNMENT == 0 for offset in arena.offsets.values())
        ordered = list(live)
        for place, one in enumerate(ordered):
            assert arena.offsets[one] + sizes[one] <= arena.bytes
            for other in ordered[place + 1 :]:
                if live[one] & live[other]:
                    first, second = sorted((one, other), key=lambda value: arena.offsets[value])
                    assert arena.offsets[first] + sizes[first] <= arena.offsets[second]


def test_the_buffer_is_little_larger_than_the_peak() -> None:
    for seed in range(20):
        func = random_program(seed)
        inputs = 8 * 4 * 4
        peak = transient_peak(func, {"T": 8}, lambda kernel, shapes, attrs: 0).bytes - inputs
        assert peak <= arena_of(func, {"T": 8}).bytes <= 1.15 * peak


def test_a_chain_needs_two_places() -> None:
    b = FunctionBuilder("step", {"x": rows(64)}, {"T": (1, 64)})
    (value,) = b.args.values()
    for _ in range(10):
        (value,) = b.launch("any", [value], [rows(64)])
    assert arena_of(b.finish({"y": value}), {"T": 8}).bytes == 2 * 8 * 64 * 4
