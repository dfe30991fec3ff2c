"""The bill of a plan: what stays in memory for each token and sequence.

`dsv41c inspect` prints it; docs/costs.md derives the figures of the released model by hand.
"""

from __future__ import annotations

from typing import Any

from dsv41c.models.config import ModelConfig
from dsv41c.models.state import draft_state_specs, state_specs


def state_bill(config: ModelConfig, page_tokens: int) -> dict[str, Any]:
    """Bytes of the caches that grow with the tokens, and of the windows that every sequence has.

    Args:
        config: the model; its draft layers have windows too.
        page_tokens: tokens a page of the global caches.
    Returns:
        `global_cache_bytes_per_token` without the padding at a page's end (SPEC 11.2), and
        `window_bytes_per_sequence` of the backbone's and the draft layers' rings (SPEC 0).
    """
    specs = state_specs(config, page_tokens)
    windows = [spec for spec in (*specs, *draft_state_specs(config)) if spec.kind == "window"]
    paged = [spec for spec in specs if spec.pool == "pages"]
    return {
        "global_cache_bytes_per_token": sum(spec.row_width * spec.dtype.itemsize / spec.ratio for spec in paged),
        "window_bytes_per_sequence": sum(spec.page_bytes for spec in windows),
    }
