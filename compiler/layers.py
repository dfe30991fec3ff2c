"""Which layer a launch works for, and how many launches a layer of each kind takes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.ir.effects import cache_writes
from dsv41c.ir.ops.program import Launch, Weight
from dsv41c.ir.types import CacheType
from dsv41c.models.config import ModelConfig

NO_LAYER = -1
_LAYER = re.compile(r"layers\.(\d+)\.")
_OWN_KINDS = ("window", "tail")
_OF_ALL_LAYERS = "rotary."  # frequencies that say nothing of who reads them


def launches_by_layer(func: FuncOp, counts: Sequence[int] | None = None) -> Counter[int]:
    """Count a program's launches by layer; `NO_LAYER` for the rest.

    `counts` says how many launches of a target each one becomes there; by default each counts once.

    A launch belongs to the latest layer whose weights it reads, whose window or tail it touches or whose cache it
    writes; so one that ends a layer and begins the next counts to the next. Without any of these it belongs to the
    layer of the last launch before it whose results it takes; but one that reads weights of no layer, as the head
    does, and one that takes no results belong to none.
    """
    made: dict[SSAValue, tuple[int, int]] = {}
    layers: list[int] = []
    for op in func.body.block.ops:
        if isinstance(op, Launch):
            layers.append(_layer_of(op, made))
            made |= dict.fromkeys(op.results, (len(layers), layers[-1]))
    found: Counter[int] = Counter()
    for layer, count in zip(layers, counts if counts is not None else [1] * len(layers), strict=True):
        found[layer] += count
    return found


def launches_by_kind(func: FuncOp, config: ModelConfig, counts: Sequence[int] | None = None) -> dict[str, int]:
    """The most launches of a layer of each kind: swa, full, reindex, reuse (SPEC 0); `+engram` where it has one."""
    by_layer = launches_by_layer(func, counts)
    most: dict[str, int] = {}
    for layer in range(config.num_hidden_layers):
        kind = config.layer_mode(layer) + ("+engram" if config.is_engram(layer) else "")
        most[kind] = max(most.get(kind, 0), by_layer[layer])
    return most


def _layer_of(op: Launch, made: dict[SSAValue, tuple[int, int]]) -> int:
    """A launch's layer; `made` gives the number and the layer of the launch that a value comes from."""
    weights = [operand.owner.symbol.data for operand in op.operands if isinstance(operand.owner, Weight)]
    marks = [int(match[1]) for weight in weights if (match := _LAYER.match(weight))]
    touched = [operand.type.data for operand in op.operands if isinstance(operand.type, CacheType)]
    written = [cache.type.data for cache in cache_writes(op) if isinstance(cache.type, CacheType)]
    marks += [data.owner for data in touched if data.kind in _OWN_KINDS] + [data.owner for data in written]
    if marks:
        return max(marks)
    if any(not weight.startswith(_OF_ALL_LAYERS) for weight in weights):
        return NO_LAYER
    return max((made[operand] for operand in op.operands if operand in made), default=(0, NO_LAYER))[1]
