"""Symptom: an exported program rejects a batch of one (pytorch#181097, #142161).

Cause: export takes a size of one for a constant, or guards against it, because broadcasting would be another program.

Why this input: the traces of the definitions that regions are made of, with their row count declared from 1, on 1, 2
and many rows. `tests/compiler/test_trace.py` does the same for the whole step program.
"""

import pytest
import torch

from dsv41c.compiler.importer import import_definition
from dsv41c.compiler.trace import trace_definition
from dsv41c.ir.interpreter import Interpreter
from dsv41c.models import ops, quant

ROWS = {"T": (1, 512)}


@pytest.mark.parametrize("rows", [1, 2, 512])
def test_one_row_is_a_size_like_any_other(rows: int) -> None:
    trace = trace_definition(quant.quantize, [(("T", 64), torch.bfloat16), "fp8_e8m0"], ROWS)
    assert trace.symbols == ROWS
    x = torch.randn(rows, 64).bfloat16()
    (ours,) = Interpreter({}.__getitem__).run(import_definition("f", trace), {"arg0": x}).values()
    assert torch.equal(ours, quant.quantize(x, "fp8_e8m0"))


@pytest.mark.parametrize("rows", [1, 2, 512])
def test_two_operands_that_share_the_size(rows: int) -> None:
    arguments = [(("T", 4), torch.int64), *[((4,), torch.int64)], *[((6,), torch.int64)] * 2]
    trace = trace_definition(ops.ngram_hash_definition, arguments, ROWS)
    values = [torch.randint(1, 99, (rows, 4)), *(torch.randint(1, 99, (n,)) for n in (4, 6, 6))]
    given = {f"arg{i}": value for i, value in enumerate(values)}
    (ours,) = Interpreter({}.__getitem__).run(import_definition("f", trace), given).values()
    assert torch.equal(ours, ops.ngram_hash_definition(*values))
