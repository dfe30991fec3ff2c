"""Every custom op: its registration (schema, fake shapes, mutation) by `opcheck`, and the corners of its reference."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

from dsv41c.models import attention_ops, mhc_ops, moe_ops, ops, pack_ops, product_ops, quant

GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(shape, generator=GENERATOR).to(dtype)


def below(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(high, shape, generator=GENERATOR).to(dtype)


def lists(rows: list[list[int]]) -> Tensor:
    return torch.tensor(rows, dtype=ops.LIST)


def scales(*shape: int) -> Tensor:
    return below(8, *shape, dtype=torch.uint8) + 120


def cache(pages: int, page: int, channels: int, row_format: str) -> Tensor:
    """A cache with random rows and an aligned page."""
    rows = quant.quantize(normal(pages * page, channels), row_format)
    stored = torch.zeros((pages, -(-page * rows.shape[1] // 256) * 256), dtype=torch.uint8)
    ops.store(stored, rows, torch.arange(pages * page), row_format, page)
    return stored


def packed_weight(outputs: int, inputs: int) -> list[Tensor]:
    return [normal(outputs, inputs, dtype=torch.float8_e4m3fn), scales(-(-outputs // 32), -(-inputs // 32))]


def expert_stack(experts: int, outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    return below(256, experts, outputs, inputs // 2, dtype=torch.uint8), scales(experts, outputs, inputs // 32)


def experts_arguments() -> tuple[Any, ...]:
    (w1, s1), (w3, s3), (w2, s2) = expert_stack(3, 32, 64), expert_stack(3, 32, 64), expert_stack(3, 64, 32)
    weights = normal(5, 2, dtype=torch.float32)
    return normal(5, 64), torch.tensor([[0, 2]] * 4 + [[-1, -1]]), weights, w1, s1, w3, s3, w2, s2, 7.0


def moe_arguments() -> tuple[Any, ...]:
    *routed, limit = experts_arguments()
    shared: list[Tensor] = []
    for outputs, inputs in ((96, 64), (96, 64), (64, 96)):
        shared += [normal(outputs, inputs, dtype=torch.float8_e4m3fn), scales(outputs // 32, inputs // 32)]
    return *routed, *shared, limit


def mhc_arguments(rows: Tensor | None = None) -> dict[str, tuple[Any, ...]]:
    """A site between two sublayers: three rows of four streams of 32 channels."""
    fp32: dict[str, Any] = {"dtype": torch.float32}
    y, h = normal(3, 32), normal(3, 4, 32)
    post, comb, pre = normal(3, 4, **fp32), normal(3, 4, 4, **fp32), normal(3, 4, **fp32)
    predictor, norm = (normal(24, 128, **fp32), normal(24, **fp32), normal(3, **fp32)), normal(32)
    return {
        "mhc_site": (y, h, post, comb, pre, *predictor, norm, 3, 1e-6, 1e-20, 1e-20),
        "mhc_enter": (h, pre, *predictor, norm, 3, 1e-6, 1e-20, 1e-20),
        "mhc_leave": (y, h, post, comb, pre, norm, rows, 1e-20),
    }


def attention_arguments(main: bool) -> tuple[Any, ...]:
    query, window = normal(3, 2, 64), cache(2, 4, 64, "fp8_e8m0")
    fresh = quant.quantize(normal(3, 64), "fp8_e8m0")
    index = lists([[-1, -1, -1, -2], [-1, 4, -2, -3], [0, 1, 2, 3]])
    selected = (cache(2, 4, 64, "fp4_e4m3"), lists([[-1] * 3, [0, 5, -1], [1, 2, 7]])) if main else (None, None)
    return query, window, fresh, index, *selected, normal(2, dtype=torch.float32), 0.125, 4, 4 if main else 1


def attend_arguments(main: bool) -> tuple[Any, ...]:
    query, *rest = attention_arguments(main)
    return query.flatten(1), normal(3, 8, dtype=torch.float32), normal(3, 8, dtype=torch.float32), *rest


def topk_arguments(candidates: bool, n_blocks: int) -> tuple[Any, ...]:
    """Two sequences, the second with its pages out of order, and a padded row at the end."""
    index, pages = cache(6, 4, 32, "fp4_e8m0"), torch.tensor([[0, 2, -1], [5, 1, 3]])
    sequence, positions = torch.tensor([0, 0, 1, 1, 0]), torch.tensor([0, 6, 3, 11, -1])
    pool = lists([[0, -1], [0, 3], [1, -1], [2, 5], [-1, -1]]) if candidates else None
    return normal(5, 2, 32), normal(5, 2), index, pages, sequence, positions, pool, 1, 3, 4, 2, n_blocks


def cases() -> list[tuple[str, tuple[Any, ...]]]:
    formats = ("fp8_e8m0", "fp4_e4m3", "fp4_e8m0")
    x, slots = normal(3, 64), torch.tensor([5, -1, 2])
    listed: list[tuple[str, tuple[Any, ...]]] = []
    for form in formats:
        rows = quant.quantize(x, form)
        listed += [("quantize", (x, form)), ("dequantize", (rows, form)), ("fake_quantize", (x, form))]
        listed += [("store", (cache(2, 4, 64, form), rows, slots, form, 4))]
        listed += [("load", (cache(2, 4, 64, form), slots.view(3, 1), form, 4, rows.shape[1]))]
        rotation = normal(3, 8, dtype=torch.float32), normal(3, 8, dtype=torch.float32)
        listed += [("pack_rows", (x, *rotation, weight, 1e-6, form)) for weight in (None, normal(64))]
        listed += [("write_rows", (cache(2, 4, 64, form), x, *rotation, normal(64), slots, 1e-6, form, 4))]
    listed += [
        ("store", (torch.zeros(2, 24), normal(3, 3, dtype=torch.float32), slots, "f32", 8)),
        ("load", (torch.zeros(2, 8, dtype=torch.int32), slots, "i32", 8, 1)),
        ("dequantize_weight", (normal(64, 32, dtype=torch.float8_e4m3fn), scales(2, 1))),
        ("dequantize_weight", (normal(40, 48, dtype=torch.float8_e4m3fn), scales(2, 2))),
        ("linears", (normal(3, 64), [*packed_weight(32, 64), *packed_weight(40, 64)], 1, 1)),
        ("linears", (normal(3, 64), packed_weight(64, 32), 2, 0)),
        ("linear_bf16", (normal(3, 64), normal(32, 64), 0)),
        ("linear_bf16", (normal(3, 64), normal(32, 64), 1)),
        ("linear_fp8", (normal(3, 64), *packed_weight(32, 64), 1)),
        ("linear_fp8", (normal(3, 64), *packed_weight(64, 32), 2)),
        ("sinkhorn", (normal(3, 4, 4, dtype=torch.float32), 3, 1e-6)),
        ("select_experts", (normal(3, 6, dtype=torch.float32), 2)),
        ("route_experts", (normal(3, 6, dtype=torch.float32), normal(6, dtype=torch.float32), 2, 1.5)),
        ("experts", experts_arguments()),
        ("moe", moe_arguments()),
        ("ngram_hash", (below(99, 3, 4), below(999, 4), below(90, 6) + 7, below(900, 6))),
        ("lookup", (normal(9, 64, dtype=torch.float8_e4m3fn), scales(9, 2), below(9, 3, 5))),
        ("rotary", (below(99, 3), normal(8, dtype=torch.float32))),
        ("sparse_attention", attention_arguments(main=False)),
        ("sparse_attention", attention_arguments(main=True)),
        ("attend", attend_arguments(main=False)),
        ("attend", attend_arguments(main=True)),
        ("index_topk", topk_arguments(candidates=False, n_blocks=0)),
        ("index_topk", topk_arguments(candidates=False, n_blocks=2)),
        ("index_topk", topk_arguments(candidates=True, n_blocks=0)),
        ("index_pool_topk", topk_arguments(candidates=True, n_blocks=0)[:-1]),
        *mhc_arguments().items(),
        ("mhc_leave", mhc_arguments(rows=torch.tensor([2, 0]))["mhc_leave"]),
    ]
    return listed


CASES = cases()
IDS = [f"{name}-{number}" for number, (name, _) in enumerate(CASES)]


def test_every_op_has_a_case() -> None:
    defined = {name.removeprefix("dsv41::") for name in torch._C._dispatch_get_all_op_names() if "dsv41::" in name}
    assert defined == {name for name, _ in CASES}


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=IDS)
def test_registration(name: str, arguments: tuple[Any, ...]) -> None:
    checks = ["test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
    if not any(value.dtype == torch.float8_e4m3fn for value in tensors_of(arguments)):
        checks.append("test_schema")  # it multiplies its inputs, which torch cannot do in fp8
    torch.library.opcheck(op_named(name), arguments, test_utils=checks)


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=IDS)
def test_only_stores_write_to_their_inputs(name: str, arguments: tuple[Any, ...]) -> None:
    given = tree_map_only(Tensor, Tensor.clone, arguments)
    op_named(name)(*given)
    changed = [not same_bytes(a, b) for a, b in zip(tensors_of(given), tensors_of(arguments), strict=True)]
    assert changed == [name in ("store", "write_rows")] + [False] * (len(changed) - 1)


def tensors_of(values: Any) -> list[Tensor]:
    """All tensors of arguments or results, those in lists too."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def op_named(name: str) -> Any:
    modules = (ops, attention_ops, mhc_ops, moe_ops, pack_ops, product_ops)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


@pytest.mark.parametrize(("name", "arguments"), CASES, ids=IDS)
def test_fake_shapes(name: str, arguments: tuple[Any, ...]) -> None:
    real = outputs(op_named(name), arguments)
    with FakeTensorMode() as mode:
        fakes = tree_map_only(Tensor, mode.from_tensor, arguments)
        fake = outputs(op_named(name), fakes)
    assert [(value.shape, value.dtype) for value in fake] == [(value.shape, value.dtype) for value in real]


def outputs(op: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Tensor, ...]:
    result = op(*arguments)
    return tuple(tensors_of(result))


# --- corners --------------------------------------------------------------------------------------------------------


def test_store_then_load() -> None:
    """Rows come back from their slots, slot -1 writes nothing, and bytes behind the last row are not touched."""
    rows = quant.quantize(normal(3, 64), "fp4_e4m3")
    stored = torch.full((2, 256), 0x7F, dtype=torch.uint8)
    ops.store(stored, rows, torch.tensor([5, -1, 2]), "fp4_e4m3", 4)
    loaded = ops.load(stored, torch.tensor([5, 2, 0]), "fp4_e4m3", 4, rows.shape[1])
    assert torch.equal(loaded[:2], rows[[0, 2]])
    assert (loaded[2] == 0x7F).all()
    assert (stored != 0x7F).any(1).all()
    assert (stored[:, 4 * rows.shape[1] :] == 0x7F).all()


def test_pages_are_planar() -> None:
    """All data bytes of a page, then all its scale bytes."""
    rows = quant.quantize(normal(4, 64), "fp8_e8m0")
    stored = torch.zeros((1, 4 * 66), dtype=torch.uint8)
    ops.store(stored, rows, torch.arange(4), "fp8_e8m0", 4)
    assert torch.equal(stored[0, : 4 * 64], rows[:, :64].flatten())
    assert torch.equal(stored[0, 4 * 64 :], rows[:, 64:].flatten())


@pytest.mark.parametrize("row_format", ["fp8_e8m0", "fp4_e4m3", "fp4_e8m0"])
def test_load_has_two_equal_forms(row_format: str) -> None:
    stored, slots = cache(3, 4, 64, row_format), torch.tensor([[0, 11], [7, -1]])
    width = quant.FORMATS[row_format].row_bytes(64)
    arguments = (stored, slots, row_format, 4, width)
    assert torch.equal(ops.load_definition(*arguments), ops.load_rows(*arguments))


def test_a_row_without_keys_is_zero() -> None:
    arguments = list(attention_arguments(main=True))
    arguments[3] = torch.full_like(arguments[3], -1)
    arguments[5] = torch.full_like(arguments[5], -1)
    assert (ops.sparse_attention(*arguments) == 0).all()


def test_masked_keys_may_hold_anything() -> None:
    """Slot -1 reads row 0; NaN there must not reach the output."""
    arguments = list(attention_arguments(main=True))
    arguments[3] = lists([[-1, 1, 2, 3]] * 3)
    arguments[5] = lists([[-1, 1, 2]] * 3)
    expected = ops.sparse_attention(*arguments)
    for position, form in ((1, "fp8_e8m0"), (4, "fp4_e4m3")):
        width = quant.FORMATS[form].row_bytes(64)
        ops.store(arguments[position], torch.full((1, width), 0x7F, dtype=torch.uint8), torch.tensor([0]), form, 4)
    assert torch.equal(ops.sparse_attention(*arguments), expected)


def test_topk_sees_only_its_own_visible_entries() -> None:
    topk, blocks = ops.index_topk(*topk_arguments(candidates=False, n_blocks=2))
    assert topk[0].tolist() == [0, -1, -1], "one visible entry"
    assert topk[4].tolist() == [-1, -1, -1], "a padded row"
    assert blocks[4].tolist() == [-1, -1]
    assert (topk[1] <= 6).all()
    assert 3 in blocks[1], "the newest entry's block is always kept"
    for row in topk.tolist():
        chosen = [entry for entry in row if entry >= 0]
        assert chosen == sorted(set(chosen))
        assert row[len(chosen) :] == [-1] * (3 - len(chosen))


def test_topk_stays_inside_the_candidates() -> None:
    arguments = topk_arguments(candidates=True, n_blocks=0)
    topk, _ = ops.index_topk(*arguments)
    pools = [{0}, {0, 1, 6}, {2, 3}, {4, 5, 10, 11}, set()]
    for row, pool in zip(topk.tolist(), pools, strict=True):
        assert {entry for entry in row if entry >= 0} <= pool
    assert topk[2].tolist() == [2, 3, -1], "fewer candidates than k"
    assert torch.equal(ops.index_pool_topk(*arguments[:-1]), topk)


def test_equal_scores_go_to_the_lower_index() -> None:
    scores = torch.tensor([[1.0, 3.0, 1.0, 3.0, 1.0], [float("-inf")] * 5])
    assert ops._best(scores, 3).tolist() == [[0, 1, 3], [-1, -1, -1]]
    assert ops.select_experts(scores[:1], 4).tolist() == [[1, 3, 0, 2]]


def test_rows_of_no_expert_stay_zero() -> None:
    assert (ops.experts(*experts_arguments())[4] == 0).all()


def test_sinkhorn_normalizes_columns_last() -> None:
    mix = ops.sinkhorn(normal(6, 4, 4, dtype=torch.float32), 20, 1e-6)
    assert torch.allclose(mix.sum(1), torch.ones(6, 4), atol=1e-5)


def test_linears_are_quantization_dequantization_and_product() -> None:
    """Bit for bit the ops that one stands for, each weight on its own."""
    x, one, other = normal(5, 96), packed_weight(32, 96), packed_weight(40, 96)
    rounded = ops.fake_quantize(x, "fp8_e8m0")
    expected = [torch.nn.functional.linear(rounded, ops.dequantize_weight(*pair)) for pair in (one, other)]
    for found, want in zip(product_ops.linears(x, [*one, *other], 1, 1), expected, strict=True):
        assert torch.equal(found, want)
    (plain,) = product_ops.linears(rounded, other, 1, 0)
    assert torch.equal(plain, expected[1])
