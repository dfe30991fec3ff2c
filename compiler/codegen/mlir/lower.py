"""Regions to one linalg module, by torch-mlir in this process."""

import re
from collections.abc import Iterable, Mapping

import torch_mlir.ir as mlir
from torch_mlir.dialects import torch as torch_dialect
from torch_mlir.passmanager import PassManager
from xdsl.dialects.func import FuncOp

from dsv41c.compiler.codegen.mlir.elementary import torch_arithmetic
from dsv41c.compiler.codegen.mlir.rounding import explicit_rounding
from dsv41c.compiler.codegen.mlir.torch_text import torch_text
from dsv41c.errors import CompileError

__all__ = ["lower_regions", "lower_text"]

_TO_LINALG = "torch-backend-to-linalg-on-tensors-backend-pipeline{allow-non-finites=True}"
_PIPELINE = f"builtin.module(func.func(torch-decompose-complex-ops), {_TO_LINALG})"
# A line of `torch_text`, and the result types in its first line.
_ATEN_LINE = re.compile(r"\s*(?P<name>%\w+)(?::(?P<count>\d+))? = torch\.aten\..* -> (?P<types>.*)")
_RESULT_TYPES = re.compile(r"-> \(.*\) attributes")
# A printed module may start with lines `#map = ...`; their names would clash when modules are joined.
_ALIAS = re.compile(r"^#(\w+) = (.*)$", re.MULTILINE)


def lower_regions(regions: Mapping[str, FuncOp], sizes: Mapping[str, int] | None = None) -> str:
    """Lowers regions to one module of linalg functions.

    Args:
        regions: the regions by the name of their function in the module.
        sizes: values for symbols, as in `torch_text`.

    Returns:
        The module's text, for IREE. Equal regions under equal names give equal text.

    Raises:
        CompileError: names region, op and torch-mlir's diagnostic.
    """
    return lower_text({name: torch_text(func, name, sizes) for name, func in regions.items()})


def lower_text(functions: Mapping[str, str]) -> str:
    """Lowers torch-mlir functions to one module of linalg functions.

    Args:
        functions: one `func.func` each, by the function's name.

    Raises:
        CompileError: as `lower_regions`.
    """
    context = _context()
    bodies = [_lower(name, text, context) for name, text in functions.items()]
    return "module {\n" + "".join(bodies) + "}\n"


def _context() -> mlir.Context:
    context = mlir.Context()
    torch_dialect.register_dialect(context)
    with context:
        # The pipeline brings further dialects (torch_c, linalg) into the context; texts that use them parse only then.
        _run(mlir.Module.parse("module {}"))
    return context


def _lower(name: str, text: str, context: mlir.Context) -> str:
    # One region at a time, so that a failure names its region.
    with context, mlir.Location.unknown():
        try:
            module = mlir.Module.parse(f"module {{\n{text}}}\n")
        except mlir.MLIRError as error:
            raise CompileError(f"region '{name}': torch-mlir does not take its text: {_diagnostics(error)}") from error
        try:
            _run(module)
        except mlir.MLIRError as error:
            culprit = next((op for op, function in _prefixes(text) if _fails(function)), "its results")
            raise CompileError(
                f"region '{name}': torch-mlir cannot lower it to linalg because of {culprit}: {_diagnostics(error)}"
            ) from error
        _refuse_written_arguments(name, module)
        return explicit_rounding(torch_arithmetic("".join(_functions(module.operation.get_asm()))))


def _prefixes(text: str) -> Iterable[tuple[str, str]]:
    """For each op of a function: its line, and the function cut off after it.

    torch-mlir's diagnostic is often about a constant that an illegal op keeps alive; the first function that fails
    names the op itself.
    """
    head, *lines = text.strip().splitlines()
    for i, line in enumerate(lines):
        match = _ATEN_LINE.fullmatch(line)
        if match is None:
            continue
        results = [f"{match['name']}#{j}" for j in range(int(match["count"]))] if match["count"] else [match["name"]]
        cut = [*lines[: i + 1], f"return {', '.join(results)} : {match['types']}", "}\n"]
        yield line.strip(), "\n".join([_RESULT_TYPES.sub(f"-> ({match['types']}) attributes", head), *cut])


def _fails(function: str) -> bool:
    try:
        _run(mlir.Module.parse(f"module {{\n{function}}}\n"))
    except mlir.MLIRError:
        return True
    return False


def _run(module: mlir.Module) -> None:
    PassManager.parse(_PIPELINE).run(module.operation)


# IREE lets an op that updates a tensor update the argument's own memory: after a kernel that sorts its argument the
# caller's tensor is sorted (and a read-only weights file is a segmentation fault).
_UPDATES = {"tensor.insert_slice": 1, "tensor.insert": 1, "tensor.scatter": 1}
_ALIASES = ("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast", "tensor.extract_slice")


def _refuse_written_arguments(name: str, module: mlir.Module) -> None:
    for function in module.body.operations:
        for op in function.regions[0].blocks[0].operations:
            if any(_is_argument(value) for value in _updated(op.operation)):
                raise CompileError(
                    f"region '{name}': {op.operation.name} would overwrite an argument of the region in memory; leave "
                    f"it to a reference kernel, or let it work on a tensor that the region computes"
                )


def _updated(op: mlir.Operation) -> list[mlir.Value]:
    """The tensors whose old elements an op keeps or reads while it writes new ones."""
    if op.name in _UPDATES:
        return [op.operands[_UPDATES[op.name]]]
    if op.name.startswith("scf."):
        return list(op.operands)
    if not op.name.startswith(("linalg.", "tm_tensor.")) or "operandSegmentSizes" not in op.attributes:
        return []
    n_inputs = mlir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[0]
    outputs = list(op.operands)[n_inputs:]
    if op.name != "linalg.generic":
        return outputs
    arguments = list(op.regions[0].blocks[0].arguments)[n_inputs:]
    return [value for value, argument in zip(outputs, arguments, strict=True) if list(argument.uses)]


def _is_argument(value: mlir.Value) -> bool:
    while not isinstance(value.owner, mlir.Block):
        if value.owner.name not in _ALIASES:
            return False
        value = value.owner.operands[0]
    return True


def _diagnostics(error: mlir.MLIRError, limit: int = 3) -> str:
    # The first diagnostics are the ones about the op; what follows are the passes that gave up because of it.
    found = [diagnostic.message for diagnostic in error.error_diagnostics]
    return " | ".join(found[:limit]) if found else str(error)


def _functions(text: str) -> Iterable[str]:
    aliases = dict(_ALIAS.findall(text))
    body = text[text.index("module") :]
    body = body[body.index("{") + 1 : body.rindex("}")]
    yield re.sub(r"#(\w+)\b", lambda match: aliases.get(match[1], match[0]), body).lstrip("\n")
