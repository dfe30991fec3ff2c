"""The state of a sequence, as one table: every cache, its layout, lifetime, and how it is restored and rolled back.

Caches, replay, rollback and hand-over all read this table (DESIGN 8, SPEC 10.6, 11).

    pool    page of a cache                        slot of position p            holds
    pages   `page_tokens` tokens, shared table     page * rows + entry % rows    main KV, index keys of the KV sources
    rings   one page a sequence                    ring * rows + p % rows        windows, compressor tails, token ids

    lifetime    prefix      found by its tokens, shared by sequences, kept until its page is needed
                sequence    a sequence's own: copied for a fork, kept beyond its end as a window state only
    restored    cached      behind a prefix that was found it is there
                replayed    a replay of the last window computes it again
                recomputed  it is written again from the tokens
    rollback    cut         rows behind the new end are written again before a forward reads them
                overwritten what newer rows took the place of is gone; as far back as the next forward needs none of it
                rewritten   it is written again from the tokens
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from dsv41c.models import quant
from dsv41c.models.config import ModelConfig
from dsv41c.models.ops import PLAIN_FORMATS

PAGE_ALIGNMENT = 256  # bytes, SPEC 11.3
DEFAULT_PAGE_TOKENS = 128  # the smallest page whose released layouts all fill their alignment: 890 B a token, SPEC 11.2
# What the columns may say; of a lifetime, the pool that it takes.
LIFETIMES = {"prefix": "pages", "sequence": "rings"}
RESTORED = ("cached", "replayed", "recomputed")
ROLLBACKS = ("cut", "overwritten", "rewritten")
TAIL_ROWS = 8  # raw compressor rows kept a sequence, SPEC 10.6
HISTORY_ROWS = 8  # token ids kept a sequence for the n-gram look-back, SPEC 7.8


@dataclass(frozen=True)
class StateSpec:
    """One cache.

    Attributes:
        name: unique, e.g. "main.20".
        kind: window, main, index, tail or history.
        owner: the layer that writes it; -1 for the token history.
        ratio: tokens an entry; 0 where rows are tokens of a window.
        row_format: a key of `quant.FORMATS`, or "f32" / "i32".
        channels: logical channels of a row.
        page: rows a page.
        row_width: packed bytes of a row, or its columns for the plain formats.
        page_width: packed bytes of a page with its alignment, or its columns for the plain formats.
        pool: "pages" (block table) or "rings" (one page a sequence).
        lifetime, restored, rollback: see the module text.
    """

    name: str
    kind: str
    owner: int
    ratio: int
    row_format: str
    channels: int
    page: int
    row_width: int
    page_width: int
    pool: str
    lifetime: str
    restored: str
    rollback: str

    @property
    def dtype(self) -> torch.dtype:
        return PLAIN_FORMATS.get(self.row_format, torch.uint8)

    @property
    def page_bytes(self) -> int:
        return self.page_width * self.dtype.itemsize

    def empty(self, n_pages: int, device: str = "cpu") -> Tensor:
        """A zeroed cache of `n_pages` pages: [n_pages, page_width]."""
        return torch.zeros((n_pages, self.page_width), dtype=self.dtype, device=device)


def state_specs(config: ModelConfig, page_tokens: int = DEFAULT_PAGE_TOKENS) -> tuple[StateSpec, ...]:
    """The backbone's state table in the order of the step program's cache inputs.

    Args:
        config: the model.
        page_tokens: tokens a page of the global caches; a multiple of every ratio.
    """
    specs = [_window(config, layer) for layer in range(config.num_hidden_layers)]
    for layer in config.kv_source_layer_ids:
        ratio = config.ratio(layer)
        specs.append(_global("main", config, layer, ratio, "fp4_e4m3", config.head_dim, page_tokens))
        specs.append(_global("index", config, layer, ratio, "fp4_e8m0", config.index_head_dim, page_tokens))
        if ratio > 1:
            specs.append(_tail(config, layer, ratio))
    if config.engram_layer_ids:
        specs.append(_history())
    return tuple(specs)


def draft_state_specs(config: ModelConfig) -> tuple[StateSpec, ...]:
    """The draft network's state: one ring a draft layer, "window.mtp.0" on, owned by the layer after the backbone's."""
    first = config.num_hidden_layers
    return tuple(
        dataclasses.replace(_window(config, first + draft), name=f"window.mtp.{draft}")
        for draft in range(config.num_nextn_predict_layers)
    )


def _window(config: ModelConfig, layer: int) -> StateSpec:
    row = quant.FORMATS["fp8_e8m0"].row_bytes(config.head_dim)
    return StateSpec(
        name=f"window.{layer}",
        kind="window",
        owner=layer,
        ratio=0,
        row_format="fp8_e8m0",
        channels=config.head_dim,
        page=config.sliding_window,
        row_width=row,
        page_width=row * config.sliding_window,
        pool="rings",
        lifetime="sequence",
        restored="replayed",
        rollback="overwritten",
    )


def _global(
    kind: str, config: ModelConfig, layer: int, ratio: int, row_format: str, channels: int, page_tokens: int
) -> StateSpec:
    rows = page_tokens // ratio
    row = quant.FORMATS[row_format].row_bytes(channels)
    return StateSpec(
        name=f"{kind}.{layer}",
        kind=kind,
        owner=layer,
        ratio=ratio,
        row_format=row_format,
        channels=channels,
        page=rows,
        row_width=row,
        page_width=-(-rows * row // PAGE_ALIGNMENT) * PAGE_ALIGNMENT,
        pool="pages",
        lifetime="prefix",
        restored="cached",
        rollback="cut",
    )


def _tail(config: ModelConfig, layer: int, ratio: int) -> StateSpec:
    columns = 2 * config.head_dim
    return StateSpec(
        name=f"tail.{layer}",
        kind="tail",
        owner=layer,
        ratio=ratio,
        row_format="f32",
        channels=columns,
        page=TAIL_ROWS,
        row_width=columns,
        page_width=TAIL_ROWS * columns,
        pool="rings",
        lifetime="sequence",
        restored="replayed",
        rollback="overwritten",
    )


def _history() -> StateSpec:
    return StateSpec(
        name="history",
        kind="history",
        owner=-1,
        ratio=0,
        row_format="i32",
        channels=1,
        page=HISTORY_ROWS,
        row_width=1,
        page_width=HISTORY_ROWS,
        pool="rings",
        lifetime="sequence",
        restored="recomputed",
        rollback="rewritten",
    )
