"""From a traced network to programs of launches as GPUs run them: which ops stay whole, because a family has kernels.

What no family has kernels for are regions of aten ops, and each becomes a row program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from xdsl.dialects.builtin import ModuleOp

from dsv41c.compiler.definitions import DEFINITIONS, Definitions
from dsv41c.models.config import ModelConfig
from dsv41c.passes.manager import PassManager, PassReport
from dsv41c.passes.pass_base import PassContext
from dsv41c.passes.pipeline import gpu_pipeline

__all__ = ["WHOLE", "gpu_context", "lower_for_gpu"]

# Ops with a definition that kernels compute as a whole; `recipes` says which kernels.
WHOLE = frozenset(
    f"dsv41.{name}"
    for name in (
        "attend",
        "fake_quantize",
        "load",
        "lookup",
        "mhc_enter",
        "mhc_leave",
        "mhc_site",
        "moe",
        "ngram_hash",
        "pack_rows",
        "route_experts",
        "select_experts",
        "sparse_attention",
    )
)


def gpu_context(config: ModelConfig | None, symbols: Mapping[str, tuple[int, int]], target: str = "gpu") -> PassContext:
    """What passes are told about GPUs.

    Args:
        config: of a traced model, None for a module from text.
        symbols: (smallest, largest) by symbol of the programs.
    """
    definitions = Definitions(symbols)
    fusible = frozenset(DEFINITIONS) - WHOLE
    return PassContext(target, config, fusible, definitions.define, definitions.define_parts, WHOLE)


def lower_for_gpu(
    traced: ModuleOp,
    config: ModelConfig,
    symbols: Mapping[str, tuple[int, int]],
    on_pass: Callable[[PassReport, ModuleOp], None] = lambda report, module: None,
) -> ModuleOp:
    """A copy of a traced module as launches and the regions that they run.

    Args:
        traced, config, symbols: the traced step program, its model, and its sizes, as in `gpu_context`.
        on_pass: called with the report of each pass.
    """
    return PassManager(gpu_pipeline(), gpu_context(config, symbols), on_pass=on_pass).run(traced)
