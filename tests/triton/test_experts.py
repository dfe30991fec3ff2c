"""Routed experts against models/ops.py: lists, projections, and the sum in expert order."""

import torch
from cost_rules import rule
from interpreter import counted, run
from tolerances import TRITON
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import experts
from dsv41c.models import ops, quant

LIMIT = 10.0
TILE = Tile({"BLOCK_ROWS": 16, "BLOCK_OUTPUTS": 128, "BLOCK_INPUTS": 256})


def weights(count: int, outputs: int, inputs: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (count, outputs, inputs // 2), generator=generator, dtype=torch.uint8)
    return codes, torch.randint(119, 123, (count, outputs, inputs // 32), generator=generator, dtype=torch.uint8)


def lists(ids: Tensor, count: int, block: int = 1024) -> dict[str, Tensor]:
    made = {"starts_ptr": torch.full((count,), -7, dtype=torch.int32)}
    made |= {"counts_ptr": torch.full((count,), -7, dtype=torch.int32)}
    made |= {"order_ptr": torch.full((ids.numel(),), -7, dtype=torch.int32)}
    kernel = experts.route().with_tiles(Tile({"BLOCK": block}))
    run(kernel, ids_ptr=ids, **made, n_pairs=ids.numel(), n_experts=count)
    return made


def test_lists() -> None:
    """More pairs than a block, experts without pairs, and pairs without an expert."""
    ids = torch.randint(-1, 5, (37, 3), generator=torch.Generator().manual_seed(3))
    ids[ids == 2] = 4
    made = lists(ids, 6, block=32)
    starts, counts, order = (made[f"{name}_ptr"].tolist() for name in ("starts", "counts", "order"))
    for expert in range(6):
        pairs = torch.where(ids.flatten() == expert)[0].tolist()
        assert order[starts[expert] : starts[expert] + counts[expert]] == pairs
    assert counts[2] == counts[5] == 0
    assert order[sum(counts) :] == [-7] * int((ids == -1).sum())


def test_experts() -> None:
    """More rows than a tile in one expert, a row without experts; the whole chain is the reference's op."""
    dim, inner, count, rows, choices = 256, 128, 4, 23, 3
    generator = torch.Generator().manual_seed(9)
    x = quant.fake_quantize(torch.randn(rows, dim, generator=generator).bfloat16() * 3, "fp8_e8m0")
    ids = torch.stack([torch.randperm(count, generator=generator)[:choices] for _ in range(rows)])
    ids[4], ids[7, 1] = -1, -1
    route_weights = torch.rand(rows, choices, generator=generator)
    (w1, s1), (w3, s3), (w2, s2) = (
        weights(count, *shape) for shape in ((inner, dim, 1), (inner, dim, 2), (dim, inner, 3))
    )

    made = lists(ids, count)
    hidden = torch.full((rows * choices, inner), torch.nan, dtype=torch.bfloat16)
    up = experts.up("up", dim, inner).with_tiles(TILE)
    projections = {"w1_ptr": w1, "s1_ptr": s1, "w3_ptr": w3, "s3_ptr": s3, "hidden_ptr": hidden}
    sizes = {"n_choices": choices, "limit": LIMIT, "n_experts": count}
    run(up, x_ptr=x, weights_ptr=route_weights, **made, **projections, **sizes)
    y = torch.full((rows * choices, dim), torch.nan, dtype=torch.bfloat16)
    down = experts.down("down", dim, inner).with_tiles(TILE)
    run(down, hidden_ptr=hidden, **made, w2_ptr=w2, s2_ptr=s2, y_ptr=y, n_experts=count)
    total = torch.full((rows, dim), torch.nan)
    combine = experts.combine("combine", dim, choices).with_tiles(Tile({"BLOCK": 256}))
    run(combine, y_ptr=y, ids_ptr=ids, shared_ptr=y, total_ptr=total, n_rows=rows)

    expected = ops.experts(x, ids, route_weights, w1, s1, w3, s3, w2, s2, LIMIT)
    assert torch.equal(total[4], torch.zeros(dim))
    assert (total == expected).float().mean() > TRITON["experts"].same
    error = (total - expected).norm(dim=1) / expected.norm(dim=1).clamp(min=1e-30)
    assert error.max() < TRITON["experts"].relative


def test_combine_adds_in_expert_order() -> None:
    """Values whose fp32 sum depends on the order."""
    y = torch.tensor([[[1e8], [1.0], [-1e8]], [[1.0], [1e8], [-1e8]]]).expand(2, 3, 32).bfloat16().contiguous()
    ids = torch.tensor([[2, 0, 1], [5, 9, 3]])
    total = torch.empty(2, 32)
    kernel = experts.combine("combine", 32, 3).with_tiles(Tile({"BLOCK": 32}))
    run(kernel, y_ptr=y, ids_ptr=ids, shared_ptr=y, total_ptr=total, n_rows=2)
    wide = y.float()
    assert torch.equal(total[0], (wide[0, 1] + wide[0, 2]) + wide[0, 0])
    assert torch.equal(total[1], (wide[1, 2] + wide[1, 0]) + wide[1, 1])


def test_moves_the_chosen_experts_once() -> None:
    """Every expert is chosen, by no more rows than a tile; each tile of outputs reads its inputs."""
    dim, inner, count, rows, choices = 256, 128, 4, 4, 2
    x = quant.fake_quantize(torch.randn(rows, dim).bfloat16(), "fp8_e8m0")
    ids, route_weights = torch.tensor([[0, 3], [3, 1], [2, 0], [3, 0]]), torch.rand(rows, choices)
    shapes = ((inner, dim, 1), (inner, dim, 2), (dim, inner, 3))
    (w1, s1), (w3, s3), (w2, s2) = (weights(count, *shape) for shape in shapes)
    hidden, y = (torch.zeros(rows * choices, width, dtype=torch.bfloat16) for width in (inner, dim))
    made = lists(ids, count)
    with counted() as moved:
        up = experts.up("up", dim, inner).with_tiles(TILE)
        packed = {"w1_ptr": w1, "s1_ptr": s1, "w3_ptr": w3, "s3_ptr": s3, "hidden_ptr": hidden}
        sizes = {"n_choices": choices, "limit": LIMIT, "n_experts": count}
        run(up, x_ptr=x, weights_ptr=route_weights, **made, **packed, **sizes)
        down = experts.down("down", dim, inner).with_tiles(TILE)
        run(down, hidden_ptr=hidden, **made, w2_ptr=w2, s2_ptr=s2, y_ptr=y, n_experts=count)
    operands = [x, ids, route_weights, w1, s1, w3, s3, w2, s2]
    cost = rule("experts", operands, [torch.empty(rows, dim)], limit=LIMIT)
    tiles = dim // int(TILE.holes["BLOCK_OUTPUTS"])
    programs = count * (1 + tiles)
    read_lists = 8 * programs + 4 * rows * choices * (1 + tiles)
    read_rows = choices * x.nbytes + tiles * hidden.nbytes
    assert moved["served"] == cost.read - x.nbytes - ids.nbytes + read_lists + read_rows
    assert moved["stores"] == hidden.nbytes + y.nbytes
