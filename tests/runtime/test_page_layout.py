"""The bytes of a page of the released caches (SPEC 11.3): all data rows first, then all scale rows."""

import pytest
import torch
from shared_folders import GOLDEN

from dsv41c.models import ops
from dsv41c.models.config import ModelConfig
from dsv41c.models.state import state_specs
from dsv41c.runtime.kernels.planes import planes

PAGE_TOKENS = 128
# Bytes of data and of scales in a row.
ROWS = {"window": (512, 16), "main": (256, 32), "index": (64, 4)}


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return ModelConfig.from_json(GOLDEN / "released")


@pytest.mark.parametrize("kind", ROWS)
def test_data_rows_come_before_scale_rows(config: ModelConfig, kind: str) -> None:
    spec = next(spec for spec in state_specs(config, PAGE_TOKENS) if spec.kind == kind)
    data, scale = ROWS[kind]
    assert spec.row_width == data + scale
    cache = spec.empty(3)
    page, offset = 2, 5
    row = torch.arange(1, data + scale + 1, dtype=torch.int64).remainder(251).to(torch.uint8)
    ops.store(cache, row[None], torch.tensor([page * spec.page + offset]), spec.row_format, spec.page)
    expected = torch.zeros_like(cache)
    scales_at = spec.page * data + offset * scale
    expected[page, offset * data : (offset + 1) * data] = row[:data]
    expected[page, scales_at : scales_at + scale] = row[data:]
    assert torch.equal(cache, expected)
    data_plane, scale_plane = planes(cache, spec.row_format, spec.page, spec.row_width)
    assert scale_plane is not None
    assert torch.equal(torch.cat((data_plane[page, offset], scale_plane[page, offset])), row)
