"""torch.export of the step program, and of the definitions that custom ops are lowered by; always on the meta device.

A trace costs no weight memory: parameters, caches and inputs are meta tensors, so the released config traces in
seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dsv41c.models.backbone import Backbone
from dsv41c.models.rows import INPUT_NAMES
from dsv41c.models.state import state_specs

Sizes = tuple[int | str, ...]  # a tensor's sizes: numbers, or names of symbols

# Sizes of a step program's inputs by symbol: rows, sequences, pages a sequence, rows with logits, pool pages, rings.
INPUT_SIZES: Mapping[str, Sizes] = {
    "tokens": ("T",),
    "positions": ("T",),
    "sequence": ("T",),
    "first_row": ("B",),
    "context": ("B",),
    "lengths": ("B",),
    "ring": ("B",),
    "pages": ("B", "P"),
    "logit_rows": ("R",),
}
POOL_SYMBOL = {"pages": "N", "rings": "S"}


@dataclass(frozen=True)
class Ranges:
    """The declared ranges of a step program's sizes; each starts at 1.

    Attributes:
        rows, sequences, pages, logit_rows: largest T, B, P and R.
        pool_pages, rings: largest N and S.
    """

    rows: int
    sequences: int
    pages: int
    logit_rows: int
    pool_pages: int
    rings: int

    def symbols(self) -> dict[str, tuple[int, int]]:
        """(smallest, largest) value by symbol."""
        largest = {
            "T": self.rows,
            "B": self.sequences,
            "P": self.pages,
            "R": self.logit_rows,
            "N": self.pool_pages,
            "S": self.rings,
        }
        return {name: (1, bound) for name, bound in largest.items()}


@dataclass(frozen=True)
class Trace:
    """An exported program with the names of its inputs.

    Attributes:
        program: the export, not decomposed: passes match custom ops in it.
        inputs: sizes by input name, in order.
        outputs: names of the results.
        symbols: (smallest, largest) by symbol.
    """

    program: ExportedProgram
    inputs: dict[str, Sizes]
    outputs: tuple[str, ...]
    symbols: Mapping[str, tuple[int, int]]


def trace_backbone(model: Backbone, ranges: Ranges) -> Trace:
    """Traces the step program of a backbone.

    Args:
        model: its values are not read; it is moved to the meta device.
        ranges: the declared ranges; sizes of 1 are legal.
    Returns:
        the trace, with inputs `INPUT_NAMES` and then the caches.
    """
    sizes: dict[str, Sizes] = {name: INPUT_SIZES[name] for name in INPUT_NAMES}
    dtypes = dict.fromkeys(sizes, torch.int64)
    caches: dict[str, Sizes] = {}
    for spec in state_specs(model.config, model.page_tokens):
        caches[spec.name] = (POOL_SYMBOL[spec.pool], spec.page_width)
        dtypes[spec.name] = spec.dtype
    dims = _dims(ranges.symbols())
    hints = _hints(ranges.symbols())
    arguments: dict[str, Any] = {name: _meta(size, dtypes[name], hints) for name, size in sizes.items()}
    arguments["caches"] = {name: _meta(size, dtypes[name], hints) for name, size in caches.items()}
    shapes: dict[str, Any] = {name: _dynamic(size, dims) for name, size in sizes.items()}
    shapes["caches"] = {name: _dynamic(size, dims) for name, size in caches.items()}
    program = torch.export.export(model.to("meta"), (), arguments, dynamic_shapes=shapes, strict=False)
    return Trace(program, sizes | caches, ("logits", "main_hidden"), ranges.symbols())


class _Definition(nn.Module):
    """A function with some of its arguments fixed, as the module that torch.export asks for."""

    def __init__(self, function: Callable[..., Any], template: Sequence[Any]) -> None:
        super().__init__()
        self.function = function
        self.template = template

    def forward(self, *tensors: Tensor) -> Any:
        given = iter(tensors)
        return self.function(*(next(given) if value is Ellipsis else value for value in self.template))


def trace_definition(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    symbols: Mapping[str, tuple[int, int]],
) -> Trace:
    """Traces the definition of a custom op for operands of given types.

    Args:
        function: plain torch code, e.g. `quant.quantize`.
        arguments: the call's arguments; a tensor is given as (sizes, dtype), everything else as its value.
        symbols: (smallest, largest) value of the symbols that the sizes name.
    Returns:
        the trace, with inputs `arg0`, `arg1`, ... for the tensors in order.
    """
    tensors = [value for value in arguments if isinstance(value, tuple)]
    used = {size for sizes, _ in tensors for size in sizes if isinstance(size, str)}
    ranges = {name: bounds for name, bounds in symbols.items() if name in used}
    dims, hints = _dims(ranges), _hints(ranges)
    metas = tuple(_meta(sizes, dtype, hints) for sizes, dtype in tensors)
    shapes = tuple(_dynamic(sizes, dims) for sizes, _ in tensors)
    template = [Ellipsis if isinstance(value, tuple) else value for value in arguments]
    module = _Definition(function, template)
    program = torch.export.export(module, metas, dynamic_shapes={"tensors": shapes}, strict=False)
    results = len(program.graph_signature.user_outputs)
    inputs: dict[str, Sizes] = {f"arg{i}": sizes for i, (sizes, _) in enumerate(tensors)}
    return Trace(program, inputs, tuple(f"result{i}" for i in range(results)), ranges)


def _dims(symbols: Mapping[str, tuple[int, int]]) -> dict[str, Dim]:
    return {name: Dim(name, min=low, max=high) for name, (low, high) in symbols.items()}


def _hints(symbols: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """A distinct example size for each symbol; none is 1, which export would take for a constant."""
    primes = itertools.cycle((5, 3, 2, 7, 11, 13))
    return {name: min(next(primes), high) if high > 1 else 1 for name, (_, high) in symbols.items()}


def _meta(sizes: Sizes, dtype: torch.dtype, hints: Mapping[str, int]) -> Tensor:
    return torch.empty([hints[s] if isinstance(s, str) else s for s in sizes], dtype=dtype, device="meta")


def _dynamic(sizes: Sizes, dims: Mapping[str, Dim]) -> dict[int, Dim]:
    return {axis: dims[size] for axis, size in enumerate(sizes) if isinstance(size, str)}
