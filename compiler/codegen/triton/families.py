"""What a kernel is to the compiler, and which kernels a model needs.

A family is a module in kernels/. It holds Triton functions with `tl.constexpr` holes and a function
`kernels(config) -> tuple[Kernel, ...]` that fills them for a model.
"""

import hashlib
import importlib
import linecache
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dsv41c.compiler.codegen.triton.targets import GpuTarget

if TYPE_CHECKING:
    from dsv41c.models.config import ModelConfig

__all__ = ["FAMILIES", "KERNELS", "Hole", "Kernel", "Tile", "fits", "kernels_of"]

# In the order in which they stand in docs/kernels.md.
FAMILIES = (
    "activations",
    "cache_rows",
    "mhc",
    "gemm",
    "experts",
    "shared_expert",
    "engram",
    "indexer",
    "sparse_attention",
    "sampling",
)

Hole = int | float | bool | str
_PACKAGE = "dsv41c.compiler.codegen.triton.kernels"
# The folder of the hand-kept families.
KERNELS = Path(__file__).parent / "kernels"
# The hole that the target fills: whether e4m3 casts are Triton's own.
_FP8_CASTS = "FP8_CASTS"


@dataclass(frozen=True)
class Tile:
    """One way to cut a kernel's work: holes that no result depends on, and launch parameters.

    Attributes:
        holes: the values of the tile's constexprs. warps, stages: Triton's num_warps and num_stages.
        targets: what the names of the targets start with that it is meant for.
    """

    holes: Mapping[str, Hole]
    warps: int = 4
    stages: int = 2
    targets: tuple[str, ...] = ("cuda:", "hip:")


@dataclass(frozen=True)
class Kernel:
    """A Triton function with the holes that a model fills.

    Attributes:
        name: unique; manifests and tables use it.
        family: a module of kernels/. function: the `@triton.jit` function in it.
        arguments: what is passed at launch, in the function's order, as Triton types: "*bf16", "i32", "fp32".
        holes: constexprs that the model decides.
        tiles: from the fastest to the smallest; the compiler takes the first that fits a target and does not spill.
        grid: programs along each axis as (size, per): size over per, rounded up. Both are numbers, arguments,
            holes or sizes.
        unaligned: pointers that need not be divisible by 16 bytes. multiples: sizes that are divisible by 16.
        sizes: what only the grid needs to know at launch.
        fp_fusion: whether products and sums may fuse; never where bits are compared.
        generated: the source of a kernel that is made from a region; empty for a function of kernels/.
    """

    name: str
    family: str
    function: str
    arguments: Mapping[str, str]
    holes: Mapping[str, Hole]
    tiles: tuple[Tile, ...]
    grid: tuple[tuple[int | str, int | str], ...]
    unaligned: tuple[str, ...] = ()
    multiples: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    fp_fusion: bool = False
    generated: str = ""

    @property
    def module(self) -> str:
        """The module of the function."""
        return f"{_PACKAGE}.{self.family}"

    @property
    def source_file(self) -> str:
        """The name of the function's file."""
        return f"{self.name if self.generated else self.family}.py"

    @property
    def source(self) -> str:
        """The text of the function's module."""
        return self.generated or (KERNELS / f"{self.family}.py").read_text()

    def load(self) -> Any:
        """The Triton function; imports Triton."""
        if self.generated:
            return _module_of(self.generated, self.name).__dict__[self.function]
        return getattr(importlib.import_module(self.module), self.function)

    def filled(self, tile: Tile, fp8_casts: bool) -> dict[str, Hole]:
        """All holes with their values, for a target that casts e4m3 or one that does not."""
        holes = {**self.holes, **tile.holes}
        return {name: fp8_casts if name == _FP8_CASTS else value for name, value in holes.items()}

    def programs(self, tile: Tile, arguments: Mapping[str, Any]) -> tuple[int, int, int]:
        """The launch grid for given arguments, in Triton's order of axes."""
        known = {**arguments, **self.holes, **tile.holes}
        counts = [-(-_value(size, known) // _value(per, known)) for size, per in self.grid]
        x, y, z = (*counts, *[1] * (3 - len(counts)))
        return x, y, z

    def with_holes(self, **holes: Hole) -> "Kernel":
        """The same kernel with other model sizes, as tests and tuning use it."""
        return replace(self, holes={**self.holes, **holes})

    def with_tiles(self, *tiles: Tile) -> "Kernel":
        """The same kernel cut in other ways."""
        return replace(self, tiles=tiles)

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Kernel":
        """The inverse of `to_json`."""
        tiles = tuple(Tile(**{**tile, "targets": tuple(tile["targets"])}) for tile in data["tiles"])
        grid = tuple((size, per) for size, per in data["grid"])
        names = {name: tuple(data[name]) for name in ("unaligned", "multiples", "sizes")}
        return cls(**{**data, "tiles": tiles, "grid": grid, **names})


def kernels_of(config: "ModelConfig", families: tuple[str, ...] = FAMILIES) -> tuple[Kernel, ...]:
    """All kernels that a model needs, family by family; imports Triton."""
    modules = (importlib.import_module(f"{_PACKAGE}.{family}") for family in families)
    return tuple(kernel for module in modules for kernel in module.kernels(config))


def fits(target: GpuTarget, shared_bytes: int, tensor_memory: int) -> list[str]:
    """What a compiled kernel takes more of than a target has, in words; empty when it fits."""
    needs = []
    if shared_bytes > target.shared_limit:
        needs.append(f"{shared_bytes} bytes of shared memory, the limit is {target.shared_limit}")
    if tensor_memory > target.tensor_memory:
        needs.append(f"{tensor_memory} columns of tensor memory, the limit is {target.tensor_memory}")
    return needs


@cache
def _module_of(text: str, name: str) -> ModuleType:
    """A module from generated text. Triton reads a function's source through `linecache`, so that needs no file."""
    file = f"<{name} {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = ModuleType(file)
    exec(compile(text, file, "exec"), module.__dict__)
    return module


def _value(name: int | str, known: Mapping[str, Any]) -> int:
    return name if isinstance(name, int) else int(known[name])
