"""The order of the passes, and the only place that holds it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dsv41c.errors import CompileError
from dsv41c.passes.common_subexpressions import CommonSubexpressions
from dsv41c.passes.dead_code import DeadCode
from dsv41c.passes.delay_mhc import DelayMhc
from dsv41c.passes.derive_replay import DeriveReplay
from dsv41c.passes.expand_definitions import ExpandDefinitions
from dsv41c.passes.fuse_rows import FuseRows
from dsv41c.passes.group_csa2 import GroupCsa2
from dsv41c.passes.hoist_engram import HoistEngram
from dsv41c.passes.lower_bf16_linear import LowerBf16Linear
from dsv41c.passes.lower_experts import LowerExperts
from dsv41c.passes.lower_fp4_kv import LowerFp4Kv
from dsv41c.passes.lower_fp8_window import LowerFp8Window
from dsv41c.passes.lower_index_k import LowerIndexK
from dsv41c.passes.lower_linear import LowerLinear
from dsv41c.passes.lower_router import LowerRouter
from dsv41c.passes.lower_sparse_attention import LowerSparseAttention
from dsv41c.passes.merge_projections import MergeProjections
from dsv41c.passes.outline_parts import OutlineParts
from dsv41c.passes.outline_regions import OutlineRegions
from dsv41c.passes.pass_base import Pass, make_pass
from dsv41c.passes.plan_memory import PlanMemory
from dsv41c.passes.restrict_candidates import RestrictCandidates
from dsv41c.passes.schedule import Schedule
from dsv41c.passes.specialize_rows import SpecializeRows
from dsv41c.passes.split_ced import SplitCed
from dsv41c.passes.state_in_place import StateInPlace
from dsv41c.passes.to_launches import ToLaunches


@dataclass(frozen=True)
class Phase:
    """A numbered group of passes that serve one end."""

    number: int
    title: str
    passes: tuple[Pass, ...]


PHASES: tuple[Phase, ...] = (
    Phase(
        0,
        "clean the trace",
        (
            # First: the trace carries values that nothing needs, and every later pass would look at them.
            DeadCode(),
            # Before any pattern: patterns find an operand by identity, so equal values must be one value.
            CommonSubexpressions(),
        ),
    ),
    Phase(
        1,
        "shape of the model",
        (
            # First: what is shared is then one value, and the notes are in all that is cut from the program.
            GroupCsa2(),
            # Behind the groups, which say what a pool belongs to.
            RestrictCandidates(),
            # While caches are values and ops are the network's own; before the forms for one row, which its parts lack.
            SplitCed(),
            # After the split, which may cut a site in two; before the forms for one row, so that a site is found once.
            DelayMhc(),
            # After all patterns of this phase; it changes the order only, and the forms for one row are to have it too.
            HoistEngram(),
        ),
    ),
    Phase(
        2,
        "formats",
        (
            # While a row's norm and rotation are the ops of the network. Stores are kernels of the CPU's runtime.
            LowerFp8Window(),
            LowerFp4Kv(store=False),
            LowerIndexK(store=False),
            # Before what chooses forms, and after what is the same for any number of rows.
            SpecializeRows(),
            # For many rows only, and while products are those of the network: behind lower-linear, which gives them
            # another form, the definition matches nothing.
            LowerExperts(),
            # While products still stand beside the weights that they read.
            LowerLinear(),
            # Products have taken the packed weights, and nobody reads the dequantized ones any more.
            DeadCode(),
        ),
    ),
    Phase(
        3,
        "fusion",
        (
            # First: a quantization that several products read is then one product's.
            MergeProjections(),
            # While the quantization of an input is an op, and not yet part of a region.
            FuseRows(),
            # While rotations are ops, and not yet part of a region; after what counts attentions.
            LowerSparseAttention(),
            # What an attention's rotations were.
            DeadCode(),
        ),
    ),
    Phase(
        4,
        "regions",
        (
            # Before regions are cut: the Sinkhorn inside a site becomes a function of its own.
            ExpandDefinitions(composed=True),
            # Sites that share streams read the same values again.
            CommonSubexpressions(),
            # After all rewrites of the network: from here on a program is calls and kernels.
            OutlineRegions(),
            # After the regions, which must not look into the parts of kernels.
            OutlineParts(),
            # Inside the regions, each distinct one once, and not in forty layers before they are found equal.
            ExpandDefinitions(),
            # Definitions repeat constants and sizes.
            CommonSubexpressions(),
            DeadCode(),
        ),
    ),
    Phase(
        5,
        "placement",
        (
            # Late: until here a cache is a value and rewrites need not think of buffers.
            StateInPlace(),
            # Behind all rewrites, so that a replay has its program's kernels; while a store is an op and not a launch.
            DeriveReplay(),
            # A launch says nothing about the op that it came from but its name.
            ToLaunches(),
            # The order is free as soon as stores are in place, and decides what is held at once.
            Schedule(),
            # Last: it cuts what the order leaves.
            PlanMemory(),
        ),
    ),
)

REGISTRY: dict[str, type[Pass]] = {
    pass_class.name: pass_class
    for pass_class in (
        CommonSubexpressions,
        DeadCode,
        DelayMhc,
        DeriveReplay,
        ExpandDefinitions,
        FuseRows,
        GroupCsa2,
        HoistEngram,
        LowerBf16Linear,
        LowerExperts,
        LowerFp4Kv,
        LowerFp8Window,
        LowerIndexK,
        LowerLinear,
        LowerRouter,
        LowerSparseAttention,
        MergeProjections,
        OutlineParts,
        OutlineRegions,
        PlanMemory,
        RestrictCandidates,
        Schedule,
        SpecializeRows,
        SplitCed,
        StateInPlace,
        ToLaunches,
    )
}


def default_pipeline(transient_budget: int = 0) -> list[Pass]:
    """Give the passes of all phases in order.

    Args:
        transient_budget: bytes that `plan-memory` may let a program hold; 0 for any number.
    """
    passes = [pass_ for phase in PHASES for pass_ in phase.passes]
    return [replace(p, budget=transient_budget) if isinstance(p, PlanMemory) else p for p in passes]


# Kernels there serve any number of rows, have no parts that other code computes, and quantize in launches of their own.
_FUSION = 3
_CPU_ONLY = {"specialize-rows", "fuse-rows", "outline-parts", "plan-memory"}


def gpu_pipeline() -> list[Pass]:
    """Give the passes for GPUs in order: those of all phases but what only the CPU asks for, stores as part of rows."""
    passes: list[Pass] = []
    for phase in PHASES:
        passes += [pass_ for pass_ in phase.passes if pass_.name not in _CPU_ONLY]
        if phase.number == _FUSION:
            # Behind all that matches the network's own ops, before regions are cut.
            passes += [LowerRouter(), LowerBf16Linear(), DeadCode()]
    return [replace(p, store=True) if isinstance(p, LowerFp4Kv | LowerIndexK) else p for p in passes]


def phases_of(name: str) -> list[str]:
    """Give the phases that run a pass, e.g. "2 formats"; none for one that runs on request."""
    return [f"{phase.number} {phase.title}" for phase in PHASES if name in {pass_.name for pass_ in phase.passes}]


def parse_pipeline(text: str) -> list[Pass]:
    """Read a pipeline such as `dead-code,some-pass{limit=4,force=true}`.

    Raises:
        CompileError: an unknown pass or option, or text of another form.
    """
    passes: list[Pass] = []
    rest = text.strip()
    while rest:
        match = re.match(r"([a-z0-9-]+)\s*(?:\{([^{}]*)\})?\s*(?:,\s*|$)", rest)
        if match is None:
            raise CompileError(f"pipeline text '{rest}' is not of the form 'pass,pass{{option=value,option=value}}'")
        passes.append(make_pass(_pass_class(match[1]), _options(match[1], match[2] or "")))
        rest = rest[match.end() :]
    return passes


def pipeline_text(passes: Sequence[Pass]) -> str:
    """Spell a pipeline so that `parse_pipeline` reads it back."""
    return ",".join(pass_.text() for pass_ in passes)


def _pass_class(name: str) -> type[Pass]:
    if name not in REGISTRY:
        raise CompileError(f"pass '{name}' is unknown; there are {', '.join(sorted(REGISTRY))}")
    return REGISTRY[name]


def _options(name: str, text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, separator, value = part.partition("=")
        if not separator:
            raise CompileError(f"option '{part}' of pass '{name}' has no value; write {part}=value")
        options[key.strip()] = value.strip()
    return options
