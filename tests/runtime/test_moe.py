"""The kernel `moe` against the op: any split of rows, compiled parts where a plan has them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dsv41c.models import moe_ops, ops, quant
from dsv41c.runtime.kernels import experts, registry
from dsv41c.runtime.kernels.binding import LaunchContext

WIDTH, INNER, SHARED, EXPERTS, LIMIT = 128, 64, 96, 5, 2.0
CONSTANT = range(3, 15)


def arguments(rows: int) -> list[Tensor]:
    """Rows of which one has no second choice, and packed weights of both kinds."""
    rng = torch.Generator().manual_seed(rows)

    def codes(*shape: int) -> Tensor:
        return torch.randint(0, 256, shape, generator=rng).to(torch.uint8)

    def scales(*shape: int) -> Tensor:
        return torch.randint(118, 124, shape, generator=rng).to(torch.uint8)

    def fp8(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
        weight = torch.randn(outputs, inputs, generator=rng).to(torch.float8_e4m3fn)
        return weight, scales(outputs // 32, inputs // 32)

    wide = [(codes(EXPERTS, INNER, WIDTH // 2), scales(EXPERTS, INNER, WIDTH // 32)) for _ in range(2)]
    narrow = codes(EXPERTS, WIDTH, INNER // 2), scales(EXPERTS, WIDTH, INNER // 32)
    shared = fp8(SHARED, WIDTH), fp8(SHARED, WIDTH), fp8(WIDTH, SHARED)
    x = quant.fake_quantize(torch.randn(rows, WIDTH, generator=rng), "fp8_e8m0")
    ids = torch.stack([torch.randperm(EXPERTS, generator=rng)[:2] for _ in range(rows)])
    ids[-1, 1] = -1
    packed = [tensor for pair in (*wide, narrow, *shared) for tensor in pair]
    return [x, ids, torch.rand(rows, 2, generator=rng), *packed]


class Views:
    """A device whose views are the tensors themselves."""

    def __init__(self, args: Sequence[Tensor]) -> None:
        self._args = args

    def share(self, tensor: Tensor) -> Any:
        return tensor

    def aligned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(tuple(shape), dtype=dtype)

    def weight(self, at: int, expert: int | None = None) -> Any:
        return self._args[at] if expert is None else self._args[at][expert]


PARTS: dict[str, Callable[..., Any]] = {
    "unpack": ops.unpack_expert,
    "activate": lambda gate, up, scale: ops.expert_activation(gate, up, scale, LIMIT),
    "unpack_shared": moe_ops.unpack_shared,
    "activate_shared": lambda gate, up: moe_ops.shared_activation(gate, up, LIMIT),
    "epilogue": moe_ops.moe_sum,
}


def run(args: list[Tensor], called: list[str] | None = None) -> Tensor:
    """The kernel's result; with parts, which note their names in `called`, where it is given."""

    def part(name: str) -> Callable[[Sequence[Any]], tuple[Tensor, ...]]:
        def call(given: Sequence[Any]) -> tuple[Tensor, ...]:
            assert called is not None
            called.append(name)
            result = PARTS[name](*given)
            return result if isinstance(result, tuple) else (result,)

        return call

    parts = {} if called is None else {name: part(name) for name in PARTS}
    # With parts no weight is asked for as a tensor: they are mapped, and only views of them are shared without a copy.
    constants = tuple(arg if at in CONSTANT and not parts else None for at, arg in enumerate(args))
    given: list[Any] = [None if at in CONSTANT and parts else arg for at, arg in enumerate(args)]
    context = LaunchContext({"limit": LIMIT}, constants, parts, Views(args))
    return registry.find("moe").bind(context)(given)[0]


@pytest.mark.parametrize("tile", [1024, 7, 4])
@pytest.mark.parametrize("rows", [1, 2, 23])
def test_the_kernel_is_the_op(rows: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "TILE_ROWS", tile)
    args = arguments(rows)
    want = moe_ops.moe(*args, LIMIT)
    assert torch.equal(run(args), want)
    called: list[str] = []
    assert torch.equal(run(args, called), want)
    assert set(called) == set(PARTS)
    assert called.count("unpack_shared") == 1
    assert called.count("unpack") == torch.unique(args[1][args[1] >= 0]).numel()
    assert called.count("epilogue") == -(-rows // tile)


def test_rows_without_any_expert_have_the_shared_one() -> None:
    args = arguments(4)
    args[1][:] = -1
    assert torch.equal(run(args), moe_ops.moe(*args, LIMIT))
    assert run(args).abs().sum() > 0
