"""Exact SSA names: xDSL drops a trailing `_12` from name hints, and a program's names must survive text and cloning."""

import re

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

_LEGAL = re.compile(r"[A-Za-z_$.-][\w$.-]*")


def set_name(value: SSAValue, name: str | None) -> None:
    """Name a value exactly; characters that the text form cannot spell become underscores."""
    if name is not None and not _LEGAL.fullmatch(name):
        name = re.sub(r"[^\w$.-]", "_", name)
        name = name if _LEGAL.fullmatch(name) else f"v{name}"
    value._name = name


def copy_names(source: Operation, target: Operation) -> None:
    """Give the values of `target`, a clone of `source`, the exact names of their originals."""
    for old, new in zip(source.walk(), target.walk(), strict=True):
        for old_value, new_value in zip(_defined(old), _defined(new), strict=True):
            new_value._name = old_value._name


def clone_module(module: ModuleOp) -> ModuleOp:
    """Copy a module, names included."""
    copy = module.clone()
    copy_names(module, copy)
    return copy


def replace_op(old: Operation, new: Operation) -> None:
    """Put an op in another's place; results that have no name yet take the exact names of those they replace.

    xDSL's own `Rewriter.replace_op` would cut `mul_3` to `mul`.
    """
    block = old.parent
    assert block is not None
    block.insert_op_before(new, old)
    for old_result, new_result in zip(old.results, new.results, strict=True):
        name = new_result.name_hint or old_result.name_hint
        old_result.replace_all_uses_with(new_result)
        set_name(new_result, name)
    old.detach()
    old.erase()


def value_names(block: Block) -> dict[SSAValue, str]:
    """Give every value of a block the name under which the text form prints it."""
    names: dict[SSAValue, str] = {}
    used: set[str] = set()
    counter = 0
    for value in [*block.args, *(result for op in block.ops for result in op.results)]:
        if value.name_hint is None:
            names[value] = str(counter)
            counter += 1
            continue
        names[value] = unused(value.name_hint, used)
        used.add(names[value])
    return names


def unused(hint: str, used: set[str]) -> str:
    """Give `hint`, or `hint_1`, `hint_2`, ... when it is taken."""
    name = hint
    count = 0
    while name in used:
        count += 1
        name = f"{hint}_{count}"
    return name


def _defined(op: Operation) -> list[SSAValue]:
    return [*op.results, *(arg for region in op.regions for block in region.blocks for arg in block.args)]
