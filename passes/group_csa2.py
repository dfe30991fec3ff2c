"""Finds the groups of layers that share main KV and index K, and leaves each shared thing once."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import networkx as nx
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, SSAValue

from dsv41c.errors import CompileError
from dsv41c.ir.builder import ORIGIN, OUTPUTS, attribute, functions, output_names
from dsv41c.ir.effects import cache_writes, has_state_effect
from dsv41c.ir.ops.state import GROUP_NOTES, IndexPoolTopk, IndexTopk, SparseAttention, Store
from dsv41c.ir.ops.torch_ops import ConstantInt
from dsv41c.ir.text import line_of
from dsv41c.ir.types import CacheType
from dsv41c.passes.pass_base import Pass, PassContext, PassResult

FULL, REINDEX, REUSE, SWA = MODES = ("full", "reindex", "reuse", "swa")
Selection = IndexTopk | IndexPoolTopk
# Ops of the page translation that must divide by the rows of a page.
_BY_PAGE = ("torch.aten.floor_divide.Scalar", "torch.aten.remainder.Scalar")


@dataclass(frozen=True)
class Member:
    """One attention of a group.

    Attributes:
        attention: the op.
        mode: "full", "reindex", "reuse" or "swa".
        selection: the op that chooses its main entries; None for "swa".
    """

    attention: SparseAttention
    mode: str
    selection: Selection | None

    @property
    def name(self) -> str:
        """The layer's window cache, which no other layer has."""
        return _root_name(self.attention.window)


@dataclass(frozen=True)
class Group:
    """The attentions that gather from one main cache; one group without an owner holds those with windows only.

    Attributes:
        owner: the main cache's name; None for windows only.
        index: the name of the index cache that its selections score; None for windows only.
        members: in program order.
    """

    owner: str | None
    index: str | None
    members: tuple[Member, ...]

    def of_mode(self, mode: str) -> list[Member]:
        """The members of one mode."""
        return [member for member in self.members if member.mode == mode]

    @property
    def selections(self) -> list[Selection]:
        """The group's selections in program order, each once."""
        return list(dict.fromkeys(m.selection for m in self.members if m.selection is not None))


def csa2_groups(func: FuncOp) -> tuple[Group, ...]:
    """Find the groups of a program from its use-def chains; layer numbers and configs play no part.

    Two attentions are of one group when they gather from one main cache, or by selections from one index cache. A
    selection's first reader is its own layer: Full for a group's first selection, Reindex for a later one. Its other
    readers are Reuse.

    Args:
        func: a traced program, or what passes made of it before regions are cut.
    Returns:
        the groups in program order, windows only last.
    Raises:
        CompileError: an attention gathers from another cache than its list was chosen for, or a cache or candidate
            pool is read that is not up to date.
    """
    attentions = [op for op in func.body.block.ops if isinstance(op, SparseAttention)]
    chosen = {op: _selection_of(op) for op in attentions if op.main is not None}
    graph = nx.Graph()
    for op, selection in chosen.items():
        assert op.main is not None
        _check_pair(op, selection)
        graph.add_edge(op, _root(op.main))
        graph.add_edge(op, selection)
        graph.add_edge(selection, _root(selection.index))
    found = [_group(nodes, chosen) for nodes in nx.connected_components(graph)]
    groups = sorted(found, key=lambda group: attentions.index(group.members[0].attention))
    local = tuple(Member(op, SWA, None) for op in attentions if op.main is None)
    return (*groups, *([Group(None, None, local)] if local else []))


def group_table(groups: Iterable[Group]) -> str:
    """Print groups as a table, a member a line: group, main cache, index cache, window cache, mode, pool or all."""
    lines = [("group", "main", "index", "layer", "mode", "selects from")]
    for number, group in enumerate(groups):
        for member in group.members:
            pool = "" if member.selection is None else ("all" if member.selection.candidates is None else "pool")
            lines.append((str(number), group.owner or "-", group.index or "-", member.name, member.mode, pool))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


@dataclass(frozen=True)
class GroupCsa2(Pass):
    """Finds the groups of layers that share main KV and index K, and leaves each shared thing once.

    What:
        %topk = dsv41.index_topk ... {...} : ...
        %slots = ... of %pages and %topk ...
        %a = dsv41.sparse_attention ..., %main, %slots, ... {...} : ...
        %again = ... of %pages and %topk ...
        %b = dsv41.sparse_attention ..., %main, %again, ... {...} : ...
          ->
        %topk = dsv41.index_topk ... {mode = "full", source = "main.2", group = 0, ...} : ...
        %slots = ... of %pages and %topk ...
        %a = dsv41.sparse_attention ..., %main, %slots, ... {mode = "full", source = "main.2", group = 0, ...} : ...
        %b = dsv41.sparse_attention ..., %main, %slots, ... {mode = "reuse", source = "main.2", group = 0, ...} : ...

    Why: of 40 layers 30 choose nothing and store nothing but their window. What is shared must be computed and kept
    once (SPEC 15.3, 15.4), and later passes and the bill ask for a layer's mode.

    Needs: caches as values, so that use-def chains say who reads what; the groups come from these alone, by
    `csa2_groups`. Refused is a graph that would choose from one thing and gather from another: a list of another
    owner's index or of other pages, a main cache, index cache or candidate pool that is not this step's.

    How: gone are also selections that no attention and no output reads, with what only they need; a store that repeats
    the one before it; and a second cache that gets the same rows in the same slots as another one of its layout. The
    latter is no longer an argument and an output of the program.

    Does not handle: two different lists from one selection, which it refuses, since one of them must be wrong. `mode`,
    `source` and `group` are notes; no kernel gets them, and regions do not carry them.
    """

    name: ClassVar[str] = "group-csa2"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rewrite all programs; counts members by mode, and `copy`, `indexer` and `list` for what went."""
        counts = dict.fromkeys((*MODES, "copy", "indexer", "list"), 0)
        changed = False
        for func in functions(module).values():
            before = sum(1 for _ in func.body.block.ops)
            counts["copy"] += _remove_copies(func)
            counts["indexer"] += _remove_dead_selections(func)
            groups = csa2_groups(func)
            counts["list"] += sum(_share_list(group, selection) for group in groups for selection in group.selections)
            changed |= before != sum(1 for _ in func.body.block.ops) or bool(groups)
            for mode in MODES:
                counts[mode] += sum(len(group.of_mode(mode)) for group in groups)
            for number, group in enumerate(groups):
                _annotate(number, group)
        return PassResult(changed, counts)

    def expects(self, module: ModuleOp, ctx: PassContext) -> Mapping[str, int] | None:
        """In a traced model each layer of the config is a member of its mode."""
        if ctx.config is None:
            return None
        modes = [ctx.config.layer_mode(layer) for layer in range(ctx.config.num_hidden_layers)]
        return {mode: modes.count(mode) * len(functions(module)) for mode in MODES}


# --- groups ----------------------------------------------------------------------------------------------------------


def _group(nodes: Iterable[object], chosen: Mapping[SparseAttention, Selection]) -> Group:
    inside = set(nodes)
    attentions = [op for op in chosen if op in inside]
    mains = list(dict.fromkeys(_root_name(op.main) for op in attentions if op.main is not None))
    indexes = list(dict.fromkeys(_root_name(chosen[op].index) for op in attentions))
    if len(mains) > 1 or len(indexes) > 1:
        raise CompileError(
            f"layers that share a cache gather from {', '.join(mains)} by selections from {', '.join(indexes)}; "
            f"supported is one main cache and one index cache a group: {line_of(attentions[-1])}"
        )
    members: list[Member] = []
    known: list[Selection] = []
    for op in attentions:
        own = chosen[op] not in known
        mode = (REINDEX if known else FULL) if own else REUSE
        known += [chosen[op]] if own else []
        members.append(Member(op, mode, chosen[op]))
    return Group(mains[0], indexes[0], tuple(members))


def _selection_of(op: SparseAttention) -> Selection:
    assert op.main_slots is not None
    found = [other for other in _slice(op.main_slots) if isinstance(other, Selection)]
    if len(found) != 1:
        raise CompileError(
            f"attention of {_root_name(op.window)} gathers by a list from {len(found)} selections; supported is one "
            f"index_topk or index_pool_topk of this program: {line_of(op)}"
        )
    return found[0]


def _slice(value: SSAValue) -> list[Operation]:
    """The ops that a value is computed from, back to selections, which belong to it, and to what touches caches."""
    found: dict[Operation, None] = {}
    open_: list[SSAValue] = [value]
    while open_:
        owner = open_.pop().owner
        if not isinstance(owner, Operation) or owner in found:
            continue
        found[owner] = None
        if not has_state_effect(owner):
            open_ += owner.operands
    return list(found)


def _check_pair(op: SparseAttention, selection: Selection) -> None:
    """Refuse an attention whose list was not chosen for the cache that it gathers from, or is not this step's."""
    assert op.main is not None
    main, index = op.cache_type("main").data, selection.cache_type("index").data
    _check_current(op, op.main, "main")
    _check_current(selection, selection.index, "index")
    pool = selection.candidates.owner if selection.candidates is not None else None
    if isinstance(pool, Selection) and _root(pool.index) is not _root(selection.index):
        raise _stale(op, selection, f"its candidate pool is of {_root_name(pool.index)}")
    if main.owner != index.owner:
        raise _stale(op, selection, f"their owners are {main.owner} and {index.owner}")
    if main.ratio != index.ratio:
        raise _stale(op, selection, f"an entry is {main.ratio} and {index.ratio} tokens")
    assert op.main_slots is not None
    for divider in (other for other in _slice(op.main_slots) if other.name in _BY_PAGE):
        by = _integer(divider.operands[1])
        if by not in (None, main.page):
            raise _stale(op, selection, f"the list is for pages of {by} rows and the cache has pages of {main.page}")


def _stale(op: SparseAttention, selection: Selection, why: str) -> CompileError:
    assert op.main is not None
    return CompileError(
        f"attention of {_root_name(op.window)} gathers from {_root_name(op.main)} by a list chosen from "
        f"{_root_name(selection.index)}, and {why}\n  gathers: {line_of(op)}\n  chooses: {line_of(selection)}\n"
        "  supported is the list of the cache's own owner; select from its index, or gather from the list's cache"
    )


def _check_current(op: Operation, cache: SSAValue, role: str) -> None:
    for use in cache.uses:
        if isinstance(use.operation, Store) and use.operation.cache is cache:
            raise CompileError(
                f"stale {role} cache: an op reads {_root_name(cache)} as it is before this step's rows are stored\n"
                f"  reads: {line_of(op)}\n  stores: {line_of(use.operation)}\n"
                "  supported is to read what the step's store gives; take the store's result"
            )


def _root(cache: SSAValue) -> SSAValue:
    """The argument that a cache value began as."""
    while isinstance(cache.owner, Store):
        cache = cache.owner.cache
    return cache


def _root_name(cache: SSAValue) -> str:
    return str(_root(cache).name_hint)


def _integer(value: SSAValue) -> int | None:
    return value.owner.value.value.data if isinstance(value.owner, ConstantInt) else None


def _annotate(number: int, group: Group) -> None:
    for member in group.members:
        notes: dict[str, Attribute] = {"mode": attribute(member.mode)}
        if group.owner is not None:
            notes |= {"source": attribute(group.owner), "group": attribute(number)}
        ops = [member.attention, *([member.selection] if member.selection and member.mode != REUSE else [])]
        for op in ops:
            op.attributes.update(notes)


# --- what goes -------------------------------------------------------------------------------------------------------


@dataclass
class _Numbers:
    """Numbers values so that equal expressions have one number, whether or not they are one value.

    Results of ops that touch caches, arguments and everything else that is not plain arithmetic are equal to themselves
    only.
    """

    _of_value: dict[SSAValue, int] = field(default_factory=dict)
    _of_key: dict[Hashable, int] = field(default_factory=dict)

    def of(self, value: SSAValue) -> int:
        """The number of a value."""
        pending = [value]
        while pending:
            top = pending[-1]
            missing = [operand for operand in _computed_from(top) if operand not in self._of_value]
            if missing:
                pending += missing
                continue
            pending.pop()
            self._of_value.setdefault(top, self._of_key.setdefault(self._key(top), len(self._of_key)))
        return self._of_value[value]

    def _key(self, value: SSAValue) -> Hashable:
        op = value.owner
        if not isinstance(op, Operation) or has_state_effect(op):
            return value
        own = frozenset((name, value) for name, value in op.attributes.items() if name not in (ORIGIN, *GROUP_NOTES))
        operands = tuple(self._of_value[operand] for operand in op.operands)
        properties = frozenset(op.properties.items())
        return (op.name, op.results.index(value), own, properties, tuple(op.result_types), operands)


def _computed_from(value: SSAValue) -> Sequence[SSAValue]:
    op = value.owner
    return op.operands if isinstance(op, Operation) and not has_state_effect(op) else ()


def _share_list(group: Group, selection: Selection) -> int:
    """Lets all readers of a selection gather by its first reader's list; gives how many lists went."""
    readers = [member.attention for member in group.members if member.selection is selection]
    first, *others = (op for op in readers if op.main_slots is not None)
    assert first.main_slots is not None
    numbers = _Numbers()
    gone: dict[SSAValue, None] = {}
    for op in others:
        own = op.main_slots
        assert own is not None
        if own is first.main_slots:
            continue
        if numbers.of(own) != numbers.of(first.main_slots):
            raise CompileError(
                f"attention of {_root_name(op.window)} and of {_root_name(first.window)} make different lists from one "
                f"selection; supported is one list a selection\n  {line_of(first)}\n  {line_of(op)}"
            )
        gone[own] = None
        op.operands = [first.main_slots if operand is own else operand for operand in op.operands]
    _erase_unused({op for value in gone for op in _slice(value)})
    return len(gone)


def _remove_dead_selections(func: FuncOp) -> int:
    """Removes selections from which no attention, store or output follows, and what only they need."""
    graph = nx.DiGraph()
    ops = list(func.body.block.ops)
    graph.add_nodes_from(ops)
    graph.add_edges_from((value.owner, op) for op in ops for value in op.operands if isinstance(value.owner, Operation))
    selections = [op for op in ops if isinstance(op, Selection)]
    dead = [op for op in selections if not any(map(_is_effect, nx.descendants(graph, op)))]
    lost = {op for selection in dead for op in (selection, *nx.descendants(graph, selection))}
    needed = {op for selection in dead for op in nx.ancestors(graph, selection)}
    for op in reversed(ops):
        unused = not any(result.first_use for result in op.results)
        if op in lost or (op in needed and unused and not cache_writes(op)):
            op.detach()
            op.erase()
    return len(dead)


def _is_effect(op: Operation) -> bool:
    return isinstance(op, SparseAttention | ReturnOp) or bool(cache_writes(op))


def _remove_copies(func: FuncOp) -> int:
    """Removes stores that repeat another one, in the same cache or in a second one of the same layout."""
    numbers = _Numbers()
    first: dict[Hashable, Store] = {}
    removed = 0
    for op in _stores(func):
        key = (numbers.of(op.rows), numbers.of(op.slots_), op.row_format, op.page, _layout(op))
        kept = first.setdefault(key, op)
        if kept is op:
            continue
        if op.cache is kept.result:
            op.result.replace_all_uses_with(kept.result)
            op.detach()
            op.erase()
            removed += 1
        elif _is_second_cache(op, kept, func):
            _drop_cache(op, kept, func)
            removed += 1
    return removed


def _stores(func: FuncOp) -> list[Store]:
    return [op for op in func.body.block.ops if isinstance(op, Store)]


def _layout(op: Store) -> CacheType:
    return CacheType(replace(op.cache_type("cache").data, owner=-1))


def _is_second_cache(op: Store, kept: Store, func: FuncOp) -> bool:
    """Whether a cache holds nothing but what another one of the pool of pages holds."""
    roots = [_root(op.cache), _root(kept.cache)]
    stores = [sum(_root(other.cache) is root for other in _stores(func)) for root in roots]
    fresh = all(len(list(root.uses)) == 1 for root in roots)
    return roots[0] is not roots[1] and stores == [1, 1] and fresh and op.cache_type("cache").pool == "pages"


def _drop_cache(op: Store, kept: Store, func: FuncOp) -> None:
    last, root = func.body.block.last_op, _root(op.cache)
    assert isinstance(last, ReturnOp)
    names = output_names(func)
    outputs = [i for i, value in enumerate(last.operands) if value is not op.result]
    last.operands = [last.operands[i] for i in outputs]
    op.result.replace_all_uses_with(kept.result)
    op.detach()
    op.erase()
    func.body.block.erase_arg(func.args[func.args.index(root)])
    func.attributes[OUTPUTS] = attribute([names[i] for i in outputs])
    func.update_function_type()


def _erase_unused(ops: Collection[Operation]) -> None:
    """Removes those of some slices that nothing uses any more."""
    block = next((op.parent_block() for op in ops), None)
    for op in reversed(list(block.ops) if block else []):
        used = any(result.first_use for result in op.results)
        if op in ops and not used and not isinstance(op, Selection) and not cache_writes(op):
            op.detach()
            op.erase()
