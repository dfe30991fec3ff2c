"""Generated row programs against the IR interpreter."""

import pytest
import torch
from interpreter import run
from torch import Tensor
from xdsl.dialects.func import FuncOp

from dsv41c.compiler.codegen.triton.row_programs import RowProgram, row_program
from dsv41c.errors import CompileError
from dsv41c.ir.builder import functions
from dsv41c.ir.dims import evaluate
from dsv41c.ir.interpreter import Interpreter, bind_symbols
from dsv41c.ir.text import parse_module
from dsv41c.ir.types import dtype_of

NORM = """
func.func @region_0(%x: !dsv41.tensor<[T, 24], bf16>, %w: !dsv41.tensor<[24], bf16>) -> !dsv41.tensor<[T, 24], bf16>
    attributes {dsv41.symbols = {T = [1, 512]}} {
  %int6 = torch.constant.int 6
  %int15 = torch.constant.int 15
  %int-1 = torch.constant.int -1
  %eps = torch.constant.float 1.0e-06
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %int1 = torch.constant.int 1
  %wide = torch.aten.to.dtype %x, %int6, %false, %false, %none
    : !dsv41.tensor<[T, 24], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 24], f32>
  %square = torch.aten.square %wide : !dsv41.tensor<[T, 24], f32> -> !dsv41.tensor<[T, 24], f32>
  %dims = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %mean = torch.aten.mean.dim %square, %dims, %true, %none
    : !dsv41.tensor<[T, 24], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %shifted = torch.aten.add.Scalar %mean, %eps, %int1
    : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %factor = torch.aten.rsqrt %shifted : !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 1], f32>
  %scaled = torch.aten.mul.Tensor %wide, %factor
    : !dsv41.tensor<[T, 24], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 24], f32>
  %weight = torch.aten.to.dtype %w, %int6, %false, %false, %none
    : !dsv41.tensor<[24], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[24], f32>
  %product = torch.aten.mul.Tensor %weight, %scaled
    : !dsv41.tensor<[24], f32>, !dsv41.tensor<[T, 24], f32> -> !dsv41.tensor<[T, 24], f32>
  %normed = torch.aten.to.dtype %product, %int15, %false, %false, %none
    : !dsv41.tensor<[T, 24], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 24], bf16>
  func.return %normed : !dsv41.tensor<[T, 24], bf16>
}
"""


def region(text: str) -> FuncOp:
    return functions(parse_module(text))["region_0"]


def as_bytes(tensor: Tensor) -> Tensor:
    narrow = tensor.dtype in (torch.bool, torch.float8_e4m3fn)
    return tensor.contiguous().view(torch.uint8) if narrow else tensor.contiguous()


def run_program(func: FuncOp, program: RowProgram, inputs: list[Tensor]) -> list[Tensor]:
    """The results of a region's kernels, as bytes where kernels have bytes."""
    sizes = bind_symbols(func, {str(a.name_hint): value for a, value in zip(func.args, inputs, strict=True)})
    memory = dict(zip(program.inputs, map(as_bytes, inputs), strict=True))
    results = [value.type for value in func.body.block.last_op.operands]
    for pointer, type_ in zip(program.outputs, results, strict=True):
        memory[pointer] = as_bytes(torch.zeros(type_.shape(sizes), dtype=type_.dtype))
    for buffer in program.scratch:
        shape = [evaluate(dim, sizes) for dim in buffer.dims]
        memory[buffer.pointer] = as_bytes(torch.zeros(shape, dtype=dtype_of(buffer.element)))
    for kernel in program.kernels:
        run(kernel, **{name: memory.get(name, sizes.get(name)) for name in kernel.arguments})
    return [memory[pointer] for pointer in program.outputs]


def test_norm() -> None:
    """A width that is no power of two; rows that no block of rows divides."""
    func = region(NORM)
    inputs = [torch.randn(37, 24).bfloat16(), torch.randn(24).bfloat16()]
    names = [str(argument.name_hint) for argument in func.args]
    (expected,) = Interpreter({}.__getitem__).run(func, dict(zip(names, inputs, strict=True))).values()
    (ours,) = run_program(func, row_program(func), inputs)
    assert torch.equal(ours, expected)


def test_an_op_without_a_form_is_refused() -> None:
    text = NORM.replace("torch.aten.square", "torch.aten.erfinv")
    with pytest.raises(CompileError, match=r"region 'region_0' is no row program because of torch.aten.erfinv: .*have"):
        row_program(region(text))
