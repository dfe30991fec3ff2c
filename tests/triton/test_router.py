"""The router as one launch: bits of the three launches that it takes the place of, ties, and what it moves."""

from pathlib import Path

import pytest
import torch
from cost_rules import rule
from dry_executor import DryExecutor
from interpreter import counted, run
from tolerances import FP32_RELATIVE
from torch import Tensor

from dsv41c.compiler.codegen.triton.device_program import DeviceCode, device_program
from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import experts
from dsv41c.compiler.codegen.triton.lowering import gpu_context
from dsv41c.ir.builder import functions
from dsv41c.ir.text import parse_module
from dsv41c.models import moe_ops
from dsv41c.passes.manager import PassManager
from dsv41c.passes.pipeline import parse_pipeline

CASE = Path(__file__).parents[1] / "passes" / "cases" / "lower-router_matches.mlir"
ROWS = 37


def launched(text: str, first: str) -> DeviceCode:
    """What a GPU runs for a router from text."""
    passes = parse_pipeline(f"{first}dead-code,outline-regions,to-launches")
    module = PassManager(passes, gpu_context(None, {"T": (1, 512)})).run(parse_module(text))
    return device_program(functions(module)["f"], module, [ROWS], few=False)


@pytest.mark.parametrize(("count", "choices"), [(12, 3), (384, 6), (8, 2)])
def test_bits_of_the_chain(count: int, choices: int) -> None:
    text = CASE.read_text()
    for old, new in (
        ("[12]", f"[{count}]"),
        (", 12]", f", {count}]"),
        (", 3]", f", {choices}]"),
        ("k = 3", f"k = {choices}"),
    ):
        text = text.replace(old, new)
    generator = torch.Generator().manual_seed(count)
    logits = 9 * torch.randn(ROWS, count, generator=generator)
    # Equal logits, softplus beyond its threshold, scores that are all zero.
    logits[:9], logits[20:24], logits[30] = logits[:9].round(), logits[20:24] + 25, -200.0
    bias = torch.randn(count, generator=generator).round(decimals=1)
    made = []
    for first, launches in (("", 3), ("lower-router,", 1)):
        code = launched(text, first)
        assert len(code.program.launches) == launches
        found = DryExecutor(code.program, code.kernels, lambda name: pytest.fail(name), {}).run(
            {"logits": logits, "bias": bias}
        )
        made.append([found[output.name] for output in code.program.outputs])
    for chain, one in zip(*made, strict=True):
        assert torch.equal(chain, one)
    ids, weights = moe_ops.route_experts_definition(logits, bias, choices, 1.5)
    assert torch.equal(made[1][0], ids)
    torch.testing.assert_close(made[1][1], weights, rtol=FP32_RELATIVE, atol=0.0)


def routed(logits: Tensor, bias: Tensor, choices: int, tile: Tile) -> tuple[Tensor, Tensor]:
    rows, count = logits.shape
    ids, weights = torch.full((rows, choices), -7), torch.full((rows, choices), torch.nan)
    kernel = experts.route_experts("route_experts", count, choices).with_tiles(tile)
    run(kernel, logits_ptr=logits, bias_ptr=bias, ids_ptr=ids, weights_ptr=weights, n_rows=rows, scale=1.5)
    return ids, weights


def test_reads_logits_once() -> None:
    """And those of the chosen once more."""
    logits, bias = torch.randn(16, 24), torch.randn(24)
    with counted() as moved:
        ids, weights = routed(logits, bias, 4, Tile({"ROWS": 16}))
    cost = rule("route_experts", [logits, bias], [ids, weights], k=4, scale=1.5)
    assert moved["served"] == cost.read + weights.nbytes
    assert moved["stores"] == cost.written
