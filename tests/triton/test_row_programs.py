"""Generated row programs against the IR interpreter, on regions of mini6 and one of the released width."""

from collections.abc import Callable, Mapping
from pathlib import Path

import golden_sources
import pytest
import torch
from golden_sources import region
from interpreter import run
from tolerances import FP32_RELATIVE, TRITON
from torch import Tensor
from xdsl.dialects.func import FuncOp

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.codegen.triton import aot
from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.compiler.codegen.triton.index_math import Axis, Index
from dsv41c.compiler.codegen.triton.row_blocks import RowBlocks
from dsv41c.compiler.codegen.triton.row_programs import RowProgram, row_program
from dsv41c.compiler.codegen.triton.targets import parse_target
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.dims import evaluate
from dsv41c.ir.interpreter import Interpreter, bind_symbols
from dsv41c.ir.text import parse_module
from dsv41c.ir.types import TensorType, dtype_of

BOUND = TRITON["row_programs"]
ROWS = 37  # no block of rows divides it
# By region: sizes, the integers of its arguments from the first to before the last, and whether no bit may differ.
CASES: dict[str, tuple[dict[str, int], dict[str, tuple[int, int]], bool]] = {
    "entry_slots": ({"T": ROWS, "B": 2, "P": 4}, {"arg0": (-1, 32), "arg1": (0, 5), "arg2": (-1, 9)}, True),
    "route_weights": ({"T": ROWS}, {"arg1": (0, 8)}, True),
    "index_queries": ({"T": ROWS}, {}, True),
    "norm": ({"T": ROWS}, {}, False),
    "window_rows": ({"T": ROWS}, {}, False),
    "mixed_streams": ({"T": 5}, {}, False),
    "mixed_streams_5120": ({"T": 2}, {}, False),
    "one_row_products": ({"T": 1}, dict.fromkeys(("arg0", "arg1", "arg2", "arg3"), (0, 40)), False),
    "one_row_attention": ({"T": 1, "S": 3}, {"arg5": (-2, 48)}, False),
}


def inputs_of(func: FuncOp, sizes: Mapping[str, int], integers: Mapping[str, tuple[int, int]]) -> dict[str, Tensor]:
    """Random values; e4m3 and scales are bytes that are neither NaN nor far from 1."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for argument in func.args:
        assert isinstance(argument.type, TensorType)
        name, shape, dtype = str(argument.name_hint), argument.type.shape(sizes), argument.type.dtype
        if dtype in (torch.uint8, torch.float8_e4m3fn):
            value = torch.randint(110, 122, shape, generator=generator, dtype=torch.uint8).view(dtype)
        elif dtype.is_floating_point:
            value = torch.randn(shape, generator=generator).to(dtype)
        else:
            value = torch.randint(*integers[name], shape, generator=generator, dtype=dtype)
        found[name] = value
    return found


def as_bytes(tensor: Tensor) -> Tensor:
    narrow = tensor.dtype in (torch.bool, torch.float8_e4m3fn)
    return tensor.contiguous().view(torch.uint8) if narrow else tensor.contiguous()


def run_program(func: FuncOp, program: RowProgram, inputs: Mapping[str, Tensor], fp8_casts: bool) -> list[Tensor]:
    """The results of a region's kernels; what no kernel writes is 7."""
    sizes = bind_symbols(func, inputs)
    memory = dict(zip(program.inputs, map(as_bytes, inputs.values()), strict=True))
    results = [value.type for value in func.body.block.last_op.operands]
    for pointer, type_ in zip(program.outputs, results, strict=True):
        memory[pointer] = as_bytes(torch.full(type_.shape(sizes), 7).to(type_.dtype))
    for buffer in program.scratch:
        shape = [evaluate(dim, sizes) for dim in buffer.dims]
        memory[buffer.pointer] = as_bytes(torch.full(shape, 7).to(dtype_of(buffer.element)))
    for kernel in program.kernels:
        given = {name: memory.get(name, sizes.get(name)) for name in kernel.arguments}
        run(kernel, fp8_casts=fp8_casts, **given)
    return [memory[pointer] for pointer in program.outputs]


def assert_same(ours: Tensor, theirs: Tensor, exact: bool) -> None:
    theirs = as_bytes(theirs)
    if exact or not theirs.is_floating_point():
        assert torch.equal(ours, theirs)
        return
    assert (ours == theirs).float().mean() >= (BOUND.same if theirs.dtype == torch.bfloat16 else 0)
    relative = BOUND.relative if theirs.dtype == torch.bfloat16 else FP32_RELATIVE
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=relative, atol=relative * 1e-3)


@pytest.mark.parametrize("name", CASES)
def test_like_the_interpreter_of_the_ir(name: str) -> None:
    sizes, integers, exact = CASES[name]
    func = region(name)
    inputs = inputs_of(func, sizes, integers)
    expected = Interpreter({}.__getitem__).run(func, inputs)
    ours = run_program(func, row_program(func), inputs, fp8_casts=name != "window_rows")
    for one, other in zip(ours, expected.values(), strict=True):
        assert_same(one, other, exact)


@pytest.mark.parametrize("name", golden_sources.KEPT)
def test_sources_are_those_that_are_kept(name: str) -> None:
    """`python tests/triton/golden_sources.py` writes them anew."""
    for file, text in golden_sources.sources(name).items():
        assert text == (golden_sources.GOLDEN / file).read_text()


def test_splits() -> None:
    """Row sums of the released width, and attention's probabilities, go through memory; products are cut."""
    streams = row_program(region("mixed_streams_5120"))
    assert streams.scratch
    assert all(kernel.grid[0] == ("T", "ROWS") for kernel in streams.kernels)
    assert any(len(kernel.grid) == 2 for kernel in streams.kernels)
    attention = row_program(region("one_row_attention"))
    assert len(attention.kernels) == 2
    (probabilities,) = attention.scratch
    assert probabilities.pointer in attention.kernels[0].arguments
    assert probabilities.pointer in attention.kernels[1].arguments
    assert not set(attention.outputs) & set(attention.kernels[0].arguments)


def test_arguments() -> None:
    program = row_program(region("entry_slots"))
    (kernel,) = program.kernels
    assert program.inputs == ("arg0_ptr", "arg1_ptr", "arg2_ptr")
    assert (program.outputs, program.scratch, program.sizes) == (("out0_ptr",), (), ("B", "P", "T"))
    assert kernel.arguments["arg2_ptr"] == "*i64"
    assert list(kernel.arguments) == [*program.inputs, *program.outputs, *program.sizes]
    assert Kernel.from_json(kernel.to_json()) == kernel


def test_offsets_beyond_32_bits() -> None:
    """In a large table, and where a size that only a launch knows is multiplied."""
    rows, column = Axis("row", "T", 16), Index.of(Axis("i64", 64, 64))
    blocks = RowBlocks({}, {}, rows, 8192, {})
    assert blocks.offset([column, Index(3)], (3_000_000, 1024), None) == "(i64).to(tl.int64) * 1024 + 3"
    assert blocks.offset([column, column], (3_000, 1024), None) == "1025 * i64"
    assert blocks.offset([column, column], (64, "P"), None) == "(i64).to(tl.int64) * P + i64"
    assert blocks.bounds_check(column.plus(1), "768*N", None) == ["i64 + 1 < 768 * N.to(tl.int64)"]
    assert blocks.sizes == {"N", "P"}


def changed(name: str, change: Callable[[str], str]) -> FuncOp:
    text = (golden_sources.REGIONS / f"{name}.mlir").read_text()
    return functions(parse_module(change(text)))[name]


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("norm", "torch.aten.square", "torch.aten.erfinv", r"erfinv: row programs do not have this op"),
        ("window_rows", "float 448.0", "float 449.0", r"to\.dtype: what is cast is not clamped to \+-448"),
        ("entry_slots", "[T, 8]", "[B*P, 8]", r"to\.dtype: it has B\*P rows"),
        ("entry_slots", "[T, 8]", "[T, P]", r"to\.dtype: two sizes of a result are not known"),
        ("norm", "24]", "99999]", r"\S+: a row of it takes a block of 131072 elements, at most 65536"),
    ],
)
def test_refused(name: str, old: str, new: str, reason: str) -> None:
    with pytest.raises(CompileError, match=rf"region '{name}' is no row program because of torch\.aten\.{reason}"):
        row_program(changed(name, lambda text: text.replace(old, new)))


def test_compiles_for_cuda_and_hip(tmp_path: Path) -> None:
    """The cache's key holds the source: another region of the same name is compiled again."""
    (kernel,) = row_program(region("route_weights")).kernels
    kept = KernelCache(tmp_path)
    targets = [parse_target(name) for name in ("cuda:sm_90", "hip:gfx942")]
    binaries = aot.compile_kernels([(kernel, target) for target in targets], kept)
    assert all(binary.binary[:4] == b"\x7fELF" and binary.spill_bytes == 0 for binary in binaries)
    assert aot.compile_kernels([(kernel, targets[0])], kept) == binaries[:1]
    (other,) = row_program(changed("route_weights", lambda text: text.replace("1.5", "2.5"))).kernels
    assert other.name == kernel.name
    assert aot.kernel_key(other, targets[0]) != aot.kernel_key(kernel, targets[0])
    assert aot.imported_sources(kernel)["route_weights.py"] == kernel.generated
    assert {"row_math.py", "formats.py"} >= set(aot.imported_sources(kernel)) - {"route_weights.py"}
