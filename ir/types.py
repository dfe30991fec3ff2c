"""The types of dsv41 programs: tensors with symbolic sizes, caches that carry their layout, and torch's scalars."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from xdsl.ir import Attribute, Data, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from dsv41c.errors import IRError
from dsv41c.ir.dims import Assignment, Dim, evaluate, normalise, symbols_of

# Element types as torch-mlir spells them.
TORCH_DTYPES: dict[str, torch.dtype] = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8E4M3FN": torch.float8_e4m3fn,
    "ui8": torch.uint8,
    "si8": torch.int8,
    "si16": torch.int16,
    "si32": torch.int32,
    "si64": torch.int64,
    "i1": torch.bool,
}
ELEMENTS: dict[torch.dtype, str] = {dtype: element for element, dtype in TORCH_DTYPES.items()}

# format word -> (data element, scale element, values that share a scale)
FORMATS: dict[str, tuple[str, str | None, int]] = {
    "fp8_e8m0": ("e4m3", "ue8m0", 32),
    "fp4_e4m3": ("e2m1", "e4m3", 16),
    "fp4_e8m0": ("e2m1", "ue8m0", 32),
    "f32": ("f32", None, 0),
    "i32": ("si32", None, 0),
}
_LAYOUT_BITS = {"e4m3": 8, "ue8m0": 8, "e2m1": 4, "f32": 32, "si32": 32}
# Which pool a kind of cache lives in; the first size of its buffer is the pool's symbol.
POOLS = {"window": "rings", "tail": "rings", "history": "rings", "main": "pages", "index": "pages"}
POOL_SYMBOLS = {"rings": "S", "pages": "N"}
PAGE_STRIDE_ALIGNMENT = 256


def element_of(dtype: torch.dtype) -> str:
    """Spell a torch dtype as an element type.

    Raises:
        IRError: the IR has no such element.
    """
    if dtype not in ELEMENTS:
        raise IRError(f"dtype {dtype} has no element type; supported are {', '.join(TORCH_DTYPES)}")
    return ELEMENTS[dtype]


def dtype_of(element: str) -> torch.dtype:
    """Give the torch dtype of an element type.

    Raises:
        IRError: unknown spelling.
    """
    if element not in TORCH_DTYPES:
        raise IRError(f"element type '{element}' is unknown; supported are {', '.join(TORCH_DTYPES)}")
    return TORCH_DTYPES[element]


def take_angle_text(parser: AttrParser) -> str:
    """Take the raw text of `<...>`, brackets balanced; sizes and layouts have a syntax of their own."""
    start = parser._current_token.span.start
    content = parser.lexer.input.content
    if content[start] != "<":
        parser.raise_error("expected '<'")
    depth = 0
    for end in range(start, len(content)):
        depth += {"<": 1, ">": -1}.get(content[end], 0)
        if depth == 0:
            parser._resume_from(end + 1)
            return content[start + 1 : end]
    parser.raise_error("'<' is never closed")


@dataclass(frozen=True)
class TensorData:
    """The parameters of a tensor type."""

    dims: tuple[Dim, ...]
    element: str


@irdl_attr_definition
class TensorType(Data[TensorData], TypeAttribute):
    """A tensor of `dims` (ints or size texts) and `element`: `!dsv41.tensor<[T, 4*T, 128], bf16>`."""

    name = "dsv41.tensor"

    @property
    def dims(self) -> tuple[Dim, ...]:
        return self.data.dims

    @property
    def element(self) -> str:
        return self.data.element

    @property
    def dtype(self) -> torch.dtype:
        return dtype_of(self.data.element)

    @classmethod
    def of(cls, dims: Iterable[Dim], element: str | torch.dtype) -> "TensorType":
        """Make a tensor type from sizes (normalised here) and an element spelling or torch dtype."""
        spelling = element_of(element) if isinstance(element, torch.dtype) else element
        dtype_of(spelling)
        return _tensor_type(tuple(normalise(dim) for dim in dims), spelling)

    def shape(self, assignment: Assignment) -> tuple[int, ...]:
        """Give the sizes under an assignment of the symbols."""
        return tuple(evaluate(dim, assignment) for dim in self.data.dims)

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset().union(*(symbols_of(dim) for dim in self.data.dims))

    def text(self) -> str:
        return _tensor_text(self.data)

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> TensorData:
        text = take_angle_text(parser)
        try:
            return _tensor_data(text)
        except (ValueError, IRError) as error:
            parser.raise_error(str(error))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(_tensor_text(self.data))


@lru_cache(maxsize=65536)
def _tensor_type(dims: tuple[Dim, ...], element: str) -> TensorType:
    return TensorType(TensorData(dims, element))


@lru_cache(maxsize=65536)
def _tensor_text(data: TensorData) -> str:
    return f"<[{', '.join(map(str, data.dims))}], {data.element}>"


@lru_cache(maxsize=65536)
def _tensor_data(text: str) -> TensorData:
    match = re.fullmatch(r"\s*\[(.*)\]\s*,\s*(\w+)\s*", text, re.DOTALL)
    if match is None:
        raise ValueError(f"tensor type <{text}> is not of the form <[sizes], element>")
    dtype_of(match[2])
    return TensorData(tuple(_dim(part) for part in _split_commas(match[1])), match[2])


def _dim(text: str) -> Dim:
    return int(text) if re.fullmatch(r"-?\d+", text) else normalise(text)


def _split_commas(text: str) -> list[str]:
    parts = re.split(r",(?![^()]*\))", text)
    return [part.strip() for part in parts if part.strip()]


@dataclass(frozen=True)
class CacheData:
    """The parameters of a cache type; `columns` values a row, `group` values that share a scale (0: no scales)."""

    kind: str
    owner: int
    ratio: int
    page: int
    element: str
    columns: int
    scale: str | None = None
    group: int = 0


@irdl_attr_definition
class CacheType(Data[CacheData], TypeAttribute):
    """A cache and its layout: `!dsv41.cache<"main", owner 20, ratio 1, page 64, planar<e2m1 x 512 | e4m3 / 16>>`.

    Planar: all data rows of a page, then all its scale rows.
    """

    name = "dsv41.cache"

    @classmethod
    def of(cls, kind: str, owner: int, ratio: int, page: int, format: str, columns: int) -> "CacheType":
        """Make a cache type from a format word (FORMATS) and the values a row."""
        if format not in FORMATS:
            raise IRError(f"cache format '{format}' is unknown; supported are {', '.join(FORMATS)}")
        element, scale, group = FORMATS[format]
        return cls(CacheData(kind, owner, ratio, page, element, columns, scale, group))

    @property
    def format(self) -> str:
        """The format word of the layout."""
        return _format_of(self.data)

    @property
    def packed(self) -> bool:
        """Whether rows are bytes (data then scales) rather than plain f32 or si32 values."""
        return self.data.scale is not None

    @property
    def row_width(self) -> int:
        """Elements of a row as it is stored and loaded: bytes when packed, else values."""
        if not self.packed:
            return self.data.columns
        return self.row_bytes

    @property
    def row_element(self) -> str:
        return "ui8" if self.packed else self.data.element

    @property
    def row_bytes(self) -> int:
        data_bits = _LAYOUT_BITS[self.data.element] * self.data.columns
        return data_bits // 8 + (self.data.columns // self.data.group if self.data.group else 0)

    @property
    def page_stride_bytes(self) -> int:
        """Bytes from a page to the next; pages of the pool "pages" are padded to a multiple of 256."""
        size = self.row_bytes * self.data.page
        return -(-size // PAGE_STRIDE_ALIGNMENT) * PAGE_STRIDE_ALIGNMENT if self.pool == "pages" else size

    @property
    def pool(self) -> str:
        return POOLS[self.data.kind]

    @property
    def storage(self) -> TensorType:
        """The type of the one buffer that holds the cache, e.g. ui8 [N, page stride]."""
        width = self.page_stride_bytes if self.packed else self.data.page * self.data.columns
        return TensorType.of([POOL_SYMBOLS[self.pool], width], self.row_element)

    def layout_text(self) -> str:
        """Spell page and layout, as error messages show them."""
        scale = f" | {self.data.scale} / {self.data.group}" if self.data.scale else ""
        return f"page {self.data.page}, planar<{self.data.element} x {self.data.columns}{scale}>"

    def text(self) -> str:
        return f'<"{self.data.kind}", owner {self.data.owner}, ratio {self.data.ratio}, {self.layout_text()}>'

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> CacheData:
        text = take_angle_text(parser)
        try:
            return _cache_data(text)
        except ValueError as error:
            parser.raise_error(str(error))

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(self.text())


_CACHE_TEXT = re.compile(
    r'\s*"(?P<kind>\w+)"\s*,\s*owner\s+(?P<owner>-?\d+)\s*,\s*ratio\s+(?P<ratio>\d+)\s*,\s*page\s+(?P<page>\d+)\s*,'
    r"\s*planar<\s*(?P<element>\w+)\s+x\s+(?P<columns>\d+)\s*(\|\s*(?P<scale>\w+)\s*/\s*(?P<group>\d+)\s*)?>\s*"
)


@lru_cache(maxsize=4096)
def _cache_data(text: str) -> CacheData:
    match = _CACHE_TEXT.fullmatch(text)
    if match is None:
        form = '<"kind", owner n, ratio n, page n, planar<element x n | scale / n>>'
        raise ValueError(f"cache type <{text}> is not of the form {form}")
    data = CacheData(
        kind=match["kind"],
        owner=int(match["owner"]),
        ratio=int(match["ratio"]),
        page=int(match["page"]),
        element=match["element"],
        columns=int(match["columns"]),
        scale=match["scale"],
        group=int(match["group"] or 0),
    )
    if data.kind not in POOLS:
        raise ValueError(f"cache kind '{data.kind}' is unknown; supported are {', '.join(POOLS)}")
    _format_of(data)
    return data


@lru_cache(maxsize=4096)
def _format_of(data: CacheData) -> str:
    for word, parts in FORMATS.items():
        if parts == (data.element, data.scale, data.group):
            return word
    known = "; ".join(f"{e} | {s} / {g}" if s else e for e, s, g in FORMATS.values())
    raise ValueError(f"layout {data.element} | {data.scale} / {data.group} is unknown; supported are {known}")


class _Scalar(ParametrizedAttribute, TypeAttribute):
    """A torch scalar type without parameters."""


@irdl_attr_definition
class TorchInt(_Scalar):
    """`!torch.int`."""

    name = "torch.int"


@irdl_attr_definition
class TorchFloat(_Scalar):
    """`!torch.float`."""

    name = "torch.float"


@irdl_attr_definition
class TorchBool(_Scalar):
    """`!torch.bool`."""

    name = "torch.bool"


@irdl_attr_definition
class TorchNone(_Scalar):
    """`!torch.none`."""

    name = "torch.none"


@irdl_attr_definition
class TorchStr(_Scalar):
    """`!torch.str`."""

    name = "torch.str"


@irdl_attr_definition
class TorchList(Data[str], TypeAttribute):
    """`!torch.list<int>`, `!torch.list<vtensor>`, `!torch.list<optional<vtensor>>`, ..."""

    name = "torch.list"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> str:
        return take_angle_text(parser).strip()

    def print_parameter(self, printer: Printer) -> None:
        printer.print_string(f"<{self.data}>")


INT, FLOAT, BOOL, NONE, STR = TorchInt(), TorchFloat(), TorchBool(), TorchNone(), TorchStr()
SCALARS: tuple[type[Attribute], ...] = (TorchInt, TorchFloat, TorchBool, TorchNone, TorchStr, TorchList)
TYPES: Sequence[type[TypeAttribute]] = (
    TensorType,
    CacheType,
    TorchInt,
    TorchFloat,
    TorchBool,
    TorchNone,
    TorchStr,
    TorchList,
)


@lru_cache(maxsize=65536)
def type_text(attribute: Attribute) -> str:
    """Spell a type; remembered, because a program repeats few types many times."""
    if isinstance(attribute, TensorType):
        return f"!dsv41.tensor{attribute.text()}"
    return str(attribute)
