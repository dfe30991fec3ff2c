"""`attend` and `sparse_attention` for many rows, in tiles whose keys are unpacked once (SPEC 4.11).

    tile    rows whose keys fit TABLE_BYTES, all distinct: their keys are unpacked into a table
    batch   rows of a tile whose keys fit KEY_BYTES: multiplied at once, keys gathered from the table

A window needs no gathering where the rows of a tile are neighbours in one sequence: each row's keys are the table's
rows from its own on. What a tile takes does not grow with the rows of the call or with the context.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsv41c.models import attention_ops, ops, quant
from dsv41c.runtime.kernels.binding import LaunchContext, Part, Results, Run
from dsv41c.runtime.kernels.planes import planes

TABLE_BYTES = 32 << 20
KEY_BYTES = 8 << 20
# Slots that lie close are counted through instead of sorted: at most so many places for each slot.
DENSE = 4
_WINDOW, _MAIN = "fp8_e8m0", "fp4_e4m3"
_NO_KEY = -1


def bind(context: LaunchContext) -> Run:
    """Arguments of the call as those of `ops.sparse_attention`, whose numbers these are."""
    attention = _Attention(context, first=1)

    def run(args: list[Any]) -> Results:
        query, *rest = args
        result = torch.empty(query.shape, dtype=query.dtype)
        for rows, keys in attention.tiles(rest, query.shape[-1]):
            attention.attend(query[rows], keys, rest[-1], result[rows])
        return (result,)

    return run


def bind_attend(context: LaunchContext) -> Run:
    """Arguments of the call as those of `attention_ops.attend`, whose numbers these are.

    Takes the compiled rotations of a tile, `prologue` and `epilogue`, if the plan has them, else torch's.
    """
    attention = _Attention(context, first=3)
    prologue, epilogue = context.parts.get("prologue"), context.parts.get("epilogue")

    def run(args: list[Any]) -> Results:
        query, cos, sin, *rest = args
        sink = rest[-1]
        turn = prologue or _part(partial(attention_ops.turned_heads, heads=sink.shape[0]))
        turn_back = epilogue or _part(attention_ops.turned_back)
        result = torch.empty(query.shape, dtype=query.dtype)
        for rows, keys in attention.tiles(rest, query.shape[-1] // sink.shape[0]):
            rotary = (cos[rows], sin[rows])
            heads = turn([query[rows], *rotary])[0]
            output = torch.empty_like(heads)
            attention.attend(heads, keys, sink, output)
            result[rows] = turn_back([output, *rotary])[0]
        return (result,)

    return run


def tile_rows(keys: int, dim: int) -> int:
    """Rows of a tile; one row's own keys are always allowed.

    Args:
        keys: of a row. dim: channels of a key.
    """
    return max(1, TABLE_BYTES // (4 * keys * dim))


def batch_rows(keys: int, dim: int) -> int:
    """Rows that are multiplied at once; arguments as `tile_rows`."""
    return max(1, KEY_BYTES // (4 * keys * dim))


@dataclass(frozen=True)
class _Block:
    """Some keys of each row of a tile.

    Attributes:
        table: fp32 [n, D].
        places: integers [R, k], rows of the table; None where row i has the table's rows i, i + 1, ...
        width: k.
    """

    table: Tensor
    places: Tensor | None
    width: int

    def of_rows(self, start: int, stop: int) -> Tensor:
        """The keys of some rows: fp32 [stop - start, k, D]."""
        if self.places is None:
            return self.table[start : stop + self.width - 1].unfold(0, self.width, 1).transpose(1, 2)
        own = self.places[start:stop].reshape(-1)
        return self.table.index_select(0, own).view(-1, self.width, self.table.shape[1])


@dataclass(frozen=True)
class _Keys:
    """All keys of each row of a tile: blocks side by side, and `bias` fp32 [R, 1, K], 0 or `ops.MASKED`."""

    blocks: Sequence[_Block]
    bias: Tensor


class _Attention:
    """One launch's attention.

    Args:
        context: the launch.
        first: where the window cache stands among its arguments.
    """

    def __init__(self, context: LaunchContext, first: int) -> None:
        self._window, self._main = context.constants[first], context.constants[first + 3]
        attrs = context.attrs
        self._scale, self._window_page, self._main_page = attrs["scale"], attrs["window_page"], attrs["main_page"]
        self._unpack_window = context.parts.get("unpack_0") or _part(partial(quant.decode_rows, row_format=_WINDOW))
        self._unpack_main = context.parts.get("unpack_1") or _part(partial(quant.decode_rows, row_format=_MAIN))

    def tiles(self, args: Sequence[Any], dim: int) -> Iterator[tuple[slice, _Keys]]:
        """The rows of a call in tiles, with their keys.

        Args:
            args: window cache, fresh rows, window index, main cache and slots or None, sink. dim: channels of a key.
        """
        _, fresh, window_index, _, main_slots, _ = args
        n_keys = window_index.shape[1] + (0 if main_slots is None else main_slots.shape[1])
        step = tile_rows(n_keys, dim)
        for start in range(0, window_index.shape[0], step):
            rows = slice(start, start + step)
            yield rows, self._keys(fresh, window_index[rows], None if main_slots is None else main_slots[rows], dim)

    def _keys(self, fresh: Tensor, index: Tensor, slots: Tensor | None, dim: int) -> _Keys:
        slides = _sliding(index)
        window = self._window_block(fresh, index, dim, slides)
        if slots is None or self._main is None:
            return _Keys([window], _bias(index))
        main = self._main_block(slots, dim)
        # A tile of keys shares one maximum, so a block that ends inside one cannot be multiplied by itself.
        apart = slides and window.width % ops.KEY_TILE == 0
        return _Keys([window, main] if apart else [_joined(window, main)], _bias(torch.cat((index, slots), dim=1)))

    def _window_block(self, fresh: Tensor, index: Tensor, dim: int, slides: bool) -> _Block:
        if slides:
            named, places = torch.cat((index[0], index[1:, -1])), None
        else:
            named, places = _distinct(index)
        named = named.to(torch.int64)
        rows = _packed(self._window, named.clamp(min=_NO_KEY), _WINDOW, self._window_page, dim)
        new = (named <= -2).nonzero().squeeze(1)
        taken = fresh[-2 - named[new]]
        for plane, own in zip(rows, taken.split([plane.shape[1] for plane in rows], dim=1), strict=True):
            plane[new] = own
        return _Block(self._unpack_window(rows)[0], places, index.shape[1])

    def _main_block(self, slots: Tensor, dim: int) -> _Block:
        named, places = _distinct(slots)
        rows = _packed(self._main, named.to(torch.int64), _MAIN, self._main_page, dim)
        return _Block(self._unpack_main(rows)[0], places, slots.shape[1])

    def attend(self, query: Tensor, keys: _Keys, sink: Tensor, result: Tensor) -> None:
        """Attention of a tile's rows over their keys.

        Args:
            query: bf16 [R, H, D]. sink: fp32 [H]. result: bf16 [R, H, D], written.
        """
        step = batch_rows(keys.bias.shape[-1], query.shape[-1])
        for start in range(0, query.shape[0], step):
            stop = min(start + step, query.shape[0])
            blocks = [block.of_rows(start, stop) for block in keys.blocks]
            own = query[start:stop].to(torch.float32)
            result[start:stop] = _attended(own, blocks, keys.bias[start:stop], sink, self._scale)


def _part(function: Callable[..., Tensor]) -> Part:
    return lambda args: (function(*args),)


def _sliding(index: Tensor) -> bool:
    """Whether each row's entries are those of the row before, one further: neighbours in one sequence."""
    return torch.equal(index[1:, :-1], index[:-1, 1:])


def _bias(index: Tensor) -> Tensor:
    """fp32 [R, 1, K], 0 for a key and `ops.MASKED` for none."""
    return ((index == _NO_KEY).to(torch.float32) * ops.MASKED).unsqueeze(1)


def _distinct(slots: Tensor) -> tuple[Tensor, Tensor]:
    """The different values of integers [R, k], ascending, and for each of them its place there, [R, k]."""
    low, high = (int(bound) for bound in slots.aminmax())
    span = high - low + 1
    if span > DENSE * slots.numel():
        return torch.unique(slots, return_inverse=True)
    shifted = (slots - low).view(-1)
    named = torch.zeros(span, dtype=torch.bool).index_fill_(0, shifted.to(torch.int64), True).nonzero().squeeze(1)
    place_of = torch.empty(span, dtype=torch.int32)
    place_of[named] = torch.arange(named.numel(), dtype=torch.int32)
    return named + low, place_of.index_select(0, shifted).view(slots.shape)


def _packed(cache: Tensor, slots: Tensor, row_format: str, page: int, dim: int) -> tuple[Tensor, Tensor]:
    """Data and scale bytes of cache rows; zeros, which are the value 0, where the slot is -1.

    Args:
        cache: uint8 [pages, stride]. slots: int64 [n].
    Returns:
        uint8 [n, data bytes], uint8 [n, scale bytes].
    """
    data, scale = planes(cache, row_format, page, quant.FORMATS[row_format].row_bytes(dim))
    assert scale is not None, "a packed format has scales"
    held = slots.clamp(min=0)
    index = (held // page, held % page)
    none = (slots < 0).nonzero().squeeze(1)
    return data[index].index_fill_(0, none, 0), scale[index].index_fill_(0, none, 0)


def _joined(first: _Block, second: _Block) -> _Block:
    assert second.places is not None
    own = first.places
    if own is None:
        own = torch.arange(second.places.shape[0]).unsqueeze(1) + torch.arange(first.width)
    places = torch.cat((own, second.places + first.table.shape[0]), dim=1)
    return _Block(torch.cat((first.table, second.table)), places, first.width + second.width)


def _attended(query: Tensor, blocks: Sequence[Tensor], bias: Tensor, sink: Tensor, scale: float) -> Tensor:
    """`ops.attention_over`, with the same operations in the same order.

    Args:
        query: fp32 [r, H, D]. blocks: keys fp32 [r, k, D] side by side, zero where there is none. bias: fp32 [r, 1, K].
        sink: fp32 [H].
    Returns:
        fp32 [r, H, D]; a row without any key is 0.
    """
    logits = torch.empty((*query.shape[:2], bias.shape[-1]))
    widths = [block.shape[1] for block in blocks]
    for block, own_bias, part in zip(blocks, bias.split(widths, -1), logits.split(widths, -1), strict=True):
        # Not by `bmm(out=part)`, which multiplies rows one by one where the result is a slice.
        torch.add(own_bias, torch.bmm(query, block.transpose(1, 2)), alpha=scale, out=part)
    highest = _of_tiles(logits, lambda tiles: tiles.amax(-1)).cummax(-1).values
    # A masked logit must weigh nothing even where no key came yet and the maximum is still the seed.
    _less(logits, torch.where(highest > ops.MASKED, highest, 0.0))
    sums = _of_tiles(logits.exp_(), lambda tiles: tiles.sum(-1))
    before = torch.cat((torch.full_like(highest[..., :1], ops.MASKED), highest[..., :-1]), dim=-1)
    total, output = _weighted(logits, blocks, sums, (before - highest).exp_())
    denominator = total + torch.exp(sink - highest[..., -1])
    output.div_(denominator.unsqueeze(-1))
    empty = ~(total > 0)
    return output.masked_fill_(empty.unsqueeze(-1), 0.0) if empty.any() else output


def _weighted(weights: Tensor, blocks: Sequence[Tensor], sums: Tensor, rescale: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the weights, and of the keys by their weights in bf16: what came before a tile is rescaled to it.

    Args:
        weights: fp32 [r, H, K]. blocks: fp32 [r, k, D] side by side. sums, rescale: fp32 [r, H, tiles].
    Returns:
        fp32 [r, H], fp32 [r, H, D].
    """
    rounded = weights.to(torch.bfloat16).to(torch.float32).split(ops.KEY_TILE, dim=-1)
    keys = [tile for block in blocks for tile in block.split(ops.KEY_TILE, dim=1)]
    total, output = sums[..., 0].clone(), torch.bmm(rounded[0], keys[0])
    for i in range(1, len(keys)):
        total.mul_(rescale[..., i]).add_(sums[..., i])
        output.mul_(rescale[..., i].unsqueeze(-1))
        if keys[i].shape[1] == ops.KEY_TILE:
            output.baddbmm_(rounded[i], keys[i])
        else:
            # Torch adds the terms of a very small product one by one to what is there already.
            output.add_(torch.bmm(rounded[i], keys[i]))
    return total, output


def _of_tiles(values: Tensor, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """A reduction over each tile of keys: fp32 [r, H, K] to [r, H, tiles]; the last tile may be shorter."""
    return torch.cat([reduce(tiles) for tiles in _tiled(values)], dim=-1)


def _less(values: Tensor, of_tiles: Tensor) -> None:
    """Subtracts from every value fp32 [r, H, K] that of its tile, [r, H, tiles]."""
    start = 0
    for tiles in _tiled(values):
        stop = start + tiles.shape[-2]
        tiles.sub_(of_tiles[..., start:stop].unsqueeze(-1))
        start = stop


def _tiled(values: Tensor) -> list[Tensor]:
    """fp32 [r, H, K] as whole tiles [r, H, n, KEY_TILE], and what is left over [r, H, 1, rest]."""
    whole = values.shape[-1] - values.shape[-1] % ops.KEY_TILE
    parts = (values[..., :whole].unflatten(-1, (-1, ops.KEY_TILE)), values[..., whole:].unsqueeze(-2))
    return [part for part in parts if part.numel()]
