"""Types: text, dtypes, cache layouts against the state table and the quantizers."""

from pathlib import Path

import pytest
import torch
from xdsl.parser import Parser
from xdsl.utils.exceptions import ParseError

from dsv41c.errors import IRError
from dsv41c.ir.dialect import make_context
from dsv41c.ir.types import TORCH_DTYPES, CacheType, TensorType, dtype_of, element_of
from dsv41c.models import quant
from dsv41c.models.config import ModelConfig
from dsv41c.models.state import state_specs

GOLDEN = Path(__file__).parents[1] / "golden"


def parse_type(text: str) -> object:
    return Parser(make_context(), text).parse_type()


@pytest.mark.parametrize(
    "text",
    [
        "!dsv41.tensor<[T, 4*T, 128], bf16>",
        "!dsv41.tensor<[], f32>",
        "!dsv41.tensor<[max(8, T), (T floordiv 4)], f8E4M3FN>",
        '!dsv41.cache<"main", owner 20, ratio 1, page 64, planar<e2m1 x 512 | e4m3 / 16>>',
        '!dsv41.cache<"tail", owner 2, ratio 2, page 8, planar<f32 x 1024>>',
        '!dsv41.cache<"history", owner -1, ratio 0, page 8, planar<si32 x 1>>',
        "!torch.int",
        "!torch.list<optional<vtensor>>",
    ],
)
def test_text_round_trip(text: str) -> None:
    assert str(parse_type(text)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("!dsv41.tensor<[T], f31>", "element type 'f31' is unknown"),
        ("!dsv41.tensor<T, f32>", "is not of the form"),
        ("!dsv41.tensor<[T / 2], f32>", "floordiv"),
        ('!dsv41.cache<"mane", owner 0, ratio 1, page 8, planar<f32 x 4>>', "cache kind 'mane' is unknown"),
        ('!dsv41.cache<"main", owner 0, ratio 1, page 8, planar<e2m1 x 64 | e4m3 / 32>>', "layout e2m1"),
        ('!dsv41.cache<"main", page 8>', "is not of the form"),
        ("!dsv41.unknown<1>", "not registered"),
    ],
)
def test_bad_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        parse_type(text)


def test_elements_and_dtypes_are_one_to_one() -> None:
    for element, dtype in TORCH_DTYPES.items():
        assert element_of(dtype_of(element)) == element
        assert dtype_of(element) == dtype
    with pytest.raises(IRError, match="complex64"):
        element_of(torch.complex64)


def test_equal_sizes_are_equal_types() -> None:
    assert TensorType.of(["T*4", "B+T"], torch.bfloat16) == TensorType.of(["4*T", "T + B"], "bf16")
    assert TensorType.of(["2*T", 3], "f32").shape({"T": 5}) == (10, 3)


@pytest.mark.parametrize("model", ["mini6", "sched40", "released"])
@pytest.mark.parametrize("page_tokens", [128, 256])
def test_caches_agree_with_the_state_table(model: str, page_tokens: int) -> None:
    for spec in state_specs(ModelConfig.from_json(GOLDEN / model / "config.json"), page_tokens):
        cache = CacheType.of(spec.kind, spec.owner, spec.ratio, spec.page, spec.row_format, spec.channels)
        assert cache.storage.dims[1] == spec.page_width, spec.name
        assert cache.row_width == spec.row_width, spec.name
        assert cache.pool == spec.pool, spec.name
        assert cache.storage.dtype == spec.dtype, spec.name
        assert cache.format == spec.row_format, spec.name


@pytest.mark.parametrize("row_format", ["fp8_e8m0", "fp4_e4m3", "fp4_e8m0"])
def test_row_bytes_are_the_quantizers(row_format: str) -> None:
    cache = CacheType.of("main", 0, 1, 8, row_format, 512)
    assert cache.row_bytes == quant.FORMATS[row_format].row_bytes(512)
