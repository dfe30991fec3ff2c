"""The bill: what `dsv41c inspect` says of bytes, flops and launches, against figures computed by hand."""

from pathlib import Path

import pytest

from dsv41c.compiler.bill import state_bill
from dsv41c.models.config import ModelConfig
from dsv41c.models.state import state_specs

GOLDEN = Path(__file__).parents[1] / "golden"
MILLION = 1 << 20


def config_of(model: str) -> ModelConfig:
    return ModelConfig.from_json(GOLDEN / model)


# --- caches ----------------------------------------------------------------------------------------------------------


def test_caches_of_the_released_model() -> None:
    """SPEC 11.2: three sources of ratio 2 and one of ratio 1; SPEC 0: 43 windows of 128 rows."""
    bill = state_bill(config_of("released"), 128)
    assert bill["global_cache_bytes_per_token"] == 3 * (288 + 68) / 2 + (288 + 68) == 890
    assert bill["window_bytes_per_sequence"] == (40 + 3) * 128 * 528 == 2_906_112


def test_caches_of_mini6() -> None:
    """Windows of 16 rows; main rows of 64 channels, index rows of 32; one source of each ratio, two draft layers."""
    config = config_of("mini6")
    main, index = config.head_dim // 2 + config.head_dim // 16, config.index_head_dim // 2 + config.index_head_dim // 32
    rows = sum((main + index) / config.ratio(layer) for layer in config.kv_source_layer_ids)
    window = config.sliding_window * (config.head_dim + config.head_dim // 32)
    bill = state_bill(config, 16)
    assert bill["global_cache_bytes_per_token"] == rows
    assert bill["window_bytes_per_sequence"] == (config.num_hidden_layers + 2) * window


@pytest.mark.parametrize("page_tokens", [128, 256])
def test_pages_add_little_to_a_million_tokens(page_tokens: int) -> None:
    specs = state_specs(config_of("released"), page_tokens)
    page = sum(spec.page_bytes for spec in specs if spec.pool == "pages")
    assert 890 <= -(-MILLION // page_tokens) * page / MILLION <= 892
