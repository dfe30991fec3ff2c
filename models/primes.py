"""The table sizes of Engram's hash columns: consecutive primes (SPEC 7.3)."""

from functools import lru_cache


def _next_prime(above: int, small: list[int]) -> int:
    """The smallest prime greater than `above`; `small`, the primes to divide by, grows as needed."""
    candidate = above + 1
    while True:
        while small[-1] * small[-1] < candidate:
            _grow(small)
        if candidate >= 2 and all(candidate % p for p in small if p * p <= candidate):
            return candidate
        candidate += 1


def _grow(small: list[int]) -> None:
    candidate = small[-1] + 2
    while any(candidate % p == 0 for p in small if p * p <= candidate):
        candidate += 2
    small.append(candidate)


@lru_cache(maxsize=16)
def engram_primes(layers: int, max_ngram: int, heads: int, base: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The table size of every hash column: consecutive primes from `base` on, no prime used twice.

    Args:
        layers: number of Engram layers. max_ngram: largest n-gram size, at least 2. heads: hash heads of one size.
        base: rows a column should have at least; the first prime is the first one that is not below it.
    Returns: primes[layer][n-gram size - 2][head].
    Source: SPEC 7.3. The search starts again for each n-gram size but skips
        used primes, so the sequence just continues.
    """
    small, last = [2, 3], base - 1
    table = []
    for _ in range(layers):
        sizes = []
        for _ in range(max_ngram - 1):
            row = []
            for _ in range(heads):
                last = _next_prime(last, small)
                row.append(last)
            sizes.append(tuple(row))
        table.append(tuple(sizes))
    return tuple(table)
