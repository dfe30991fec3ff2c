"""How many sequences, rows, pages and tokens an engine serves, by the plan's ranges, the model and the caller."""

from __future__ import annotations

from dsv41c.errors import RequestError
from dsv41c.models.config import ModelConfig
from dsv41c.runtime.bill import MemoryBill
from dsv41c.runtime.caches import CacheBook
from dsv41c.runtime.plan_format import Manifest

DEFAULT_SEQUENCES = 8
DEFAULT_CACHE_BYTES = 1 << 30  # of the "pages" pools, unless the caller says how many tokens or bytes
DEFAULT_ROWS = 512  # of a call of a plan that names no range


class Sizes:
    """The sizes of one engine.

    Args:
        manifest: of the plan.
        config: its model.
        max_sequences: requests that run at the same time; the plan's range, at most 8, if None.
        chunk_tokens: tokens of one call; the plan's range if None.
    Raises:
        RequestError: sizes that the plan was not compiled for.

    Attributes:
        max_sequences, chunk_tokens: as they are.
        page_tokens: tokens a page.
        rings: sequence slots.
    """

    def __init__(
        self, manifest: Manifest, config: ModelConfig, max_sequences: int | None, chunk_tokens: int | None
    ) -> None:
        self._ranges = manifest.shape_ranges
        self._state = manifest.state
        self._positions = config.max_position_embeddings
        self.page_tokens = manifest.page_tokens
        rows = self.highest("T", DEFAULT_ROWS)
        self.chunk_tokens = rows if chunk_tokens is None else chunk_tokens
        if not 1 <= self.chunk_tokens <= rows:
            raise RequestError(
                f"chunk_tokens is {chunk_tokens}; the plan was compiled for calls of 1..{rows} rows; "
                "ask for fewer, or compile it with a larger max_rows"
            )
        self.max_sequences = max_sequences or min(DEFAULT_SEQUENCES, self.highest("B", DEFAULT_SEQUENCES))
        highest = min(self.highest(symbol, rows) for symbol in ("B", "S", "R", "T"))
        if not 1 <= self.max_sequences <= highest:
            raise RequestError(
                f"max_sequences is {self.max_sequences}; the plan was compiled for 1..{highest}; "
                "ask for fewer, or compile it with a larger range of B"
            )
        self.rings = max(self.max_sequences, self.lowest("S"))

    def highest(self, symbol: str, default: int) -> int:
        """The end of a symbol's range, included."""
        return self._ranges.get(symbol, (0, default))[1]

    def lowest(self, symbol: str) -> int:
        """The begin of a symbol's range, at least 1."""
        return max(1, self._ranges.get(symbol, (1, 1))[0])

    def padded(self, rows: int, multiple: int) -> int:
        """Rows of a call that is to run so many."""
        return max(min(-(-rows // multiple) * multiple, self.highest("T", DEFAULT_ROWS)), self.lowest("T"))

    @property
    def max_tokens(self) -> int:
        """Tokens of one sequence."""
        by_pages = self.highest("P", 0) * self.page_tokens
        return min(self._positions, by_pages) if by_pages else self._positions

    @property
    def explained(self) -> str:
        """`max_tokens` and where it comes from."""
        return (
            f"{self.max_tokens} (max_position_embeddings {self._positions}, block table {self.highest('P', 0)} pages "
            f"of {self.page_tokens})"
        )

    def pages(self, cache_tokens: int | None, memory_bytes: int | None, bill: MemoryBill) -> int:
        """Pages of the caches.

        Args:
            cache_tokens: for so many tokens; for as many as can be used, within the default or `memory_bytes`, if None.
            memory_bytes: that caches and a call's values may take together; unlimited if None.
            bill: of the plan.
        Raises:
            RequestError: they do not fit.
        """
        book = CacheBook(self._state, self.page_tokens, 0, self.rings)
        page_bytes = max(1, book.page_bytes)
        usable = self.highest("N", -(-self.max_tokens // self.page_tokens) * self.max_sequences)
        if memory_bytes is None:
            affordable = max(1, DEFAULT_CACHE_BYTES // page_bytes)
        else:
            affordable = self._affordable(memory_bytes, bill, book)
        if cache_tokens is None:
            wanted = min(-(-self.max_tokens // self.page_tokens) * self.max_sequences, affordable)
        else:
            wanted = max(1, -(-cache_tokens // self.page_tokens))
            if memory_bytes is not None and wanted > affordable:
                raise RequestError(
                    f"cache_tokens {cache_tokens} takes {wanted} pages of {page_bytes} bytes, and memory_bytes "
                    f"{memory_bytes} leaves room for {affordable}; ask for fewer, or allow more"
                )
        return max(self.lowest("N"), min(wanted, usable))

    def _affordable(self, memory_bytes: int, bill: MemoryBill, book: CacheBook) -> int:
        transient = bill.transient(self.chunk_tokens, self.max_tokens)
        rings = book.ring_bytes * self.rings
        affordable = (memory_bytes - transient - rings) // max(1, book.page_bytes)
        if affordable < self.lowest("N"):
            raise RequestError(
                f"memory_bytes is {memory_bytes}; a call of {self.chunk_tokens} tokens takes {transient} bytes, the "
                f"rings of {self.rings} sequences {rings}, a page {book.page_bytes}; allow more, or fewer chunk_tokens "
                "or max_sequences"
            )
        return affordable
