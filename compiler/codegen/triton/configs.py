"""Tuned tiles of kernels, measured on a GPU: one JSON file a target, beside the tiles that the families list.

    tuned/cuda_sm_90.json
    {"target": "cuda:sm_90",
     "conditions": {"device": "...", "driver": "...", "date": "...", "triton": "..."},
     "configs": [{"function": "gemm_kernel", "holes": {"FORMAT": "fp8", ...},
                  "tile": {"holes": {"BLOCK_ROWS": 128, ...}, "warps": 8, "stages": 3},
                  "microseconds": 41.5, "default_microseconds": 48.0}]}

A config goes before a kernel's own tiles and is refused like them when it does not fit, so a kernel has always a tile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dsv41c.compiler.codegen.triton.families import Hole, Kernel, Tile
from dsv41c.compiler.codegen.triton.targets import GpuTarget
from dsv41c.errors import CompileError

__all__ = ["Config", "Configs", "configs_of", "read_configs", "with_config", "write_configs"]

_FOLDER = Path(__file__).parent / "tuned"
_FIELDS = {"function", "holes", "tile", "microseconds", "default_microseconds"}


@dataclass(frozen=True)
class Config:
    """A measured choice.

    Attributes:
        function, holes: the kernel, by its function and by what the model decides; its name plays no part.
        tile: the choice.
        microseconds, default_microseconds: medians of it and of the kernel's own first tile that fitted.
    """

    function: str
    holes: dict[str, Hole]
    tile: Tile
    microseconds: float
    default_microseconds: float


@dataclass(frozen=True)
class Configs:
    """The choices for a target, and on what they were measured."""

    target: str
    configs: tuple[Config, ...] = ()
    conditions: dict[str, Any] = field(default_factory=dict)

    def find(self, kernel: Kernel) -> Config | None:
        """The choice for a kernel, or None."""
        for config in self.configs:
            if config.function == kernel.function and config.holes == dict(kernel.holes):
                return config
        return None


def configs_of(target: GpuTarget) -> Configs | None:
    """The choices that come with the package, or None where nothing was measured."""
    path = _FOLDER / f"{target.name.replace(':', '_')}.json"
    return read_configs(path) if path.is_file() else None


def read_configs(path: Path) -> Configs:
    """Reads a file of choices.

    Raises:
        CompileError: it is none; the message names the entry.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CompileError(
            f"{path} holds no tuned configs ({error}); write one with `dsv41c bench --tune`, or leave it out"
        ) from None
    if not isinstance(data, dict) or not {"target", "configs"} <= set(data):
        raise CompileError(f"{path}: expected an object with 'target' and 'configs'; write it with dsv41c bench --tune")
    return Configs(
        data["target"],
        tuple(_config(entry, f"{path}, config {number}") for number, entry in enumerate(data["configs"])),
        data.get("conditions", {}),
    )


def write_configs(path: Path, configs: Configs) -> None:
    """Writes a file that `read_configs` reads."""
    entries = [asdict(config) for config in configs.configs]
    for entry in entries:
        del entry["tile"]["targets"]
    data = {"target": configs.target, "conditions": configs.conditions, "configs": entries}
    path.write_text(json.dumps(data, indent=1) + "\n")


def with_config(kernel: Kernel, target: GpuTarget, configs: Configs | None) -> tuple[Kernel, bool]:
    """The kernel with the tuned tile for a target before its own ones, and whether there is one.

    Raises:
        CompileError: the choices are another target's, or the tile does not fill the kernel's holes.
    """
    if configs is not None and configs.target != target.name:
        raise CompileError(
            f"the configs were tuned for {configs.target} and would be used for {target.name}; give the file of "
            f"{target.name}, or none"
        )
    config = None if configs is None else configs.find(kernel)
    if config is None:
        return kernel, False
    own = next(tile for tile in kernel.tiles if target.name.startswith(tile.targets))
    if set(config.tile.holes) != set(own.holes):
        raise CompileError(
            f"the tuned config of kernel {kernel.name!r} for {target.name} fills {_names(config.tile.holes)}, "
            f"its tiles fill {_names(own.holes)}; tune it again with `dsv41c bench --tune`, or remove the config"
        )
    return kernel.with_tiles(config.tile, *kernel.tiles), True


def _names(holes: Iterable[str]) -> str:
    return ", ".join(sorted(holes)) or "nothing"


def _config(entry: Any, where: str) -> Config:
    if not isinstance(entry, dict) or set(entry) != _FIELDS:
        raise CompileError(f"{where}: expected the fields {', '.join(sorted(_FIELDS))}")
    tile = entry["tile"]
    if not isinstance(tile, dict) or set(tile) != {"holes", "warps", "stages"}:
        raise CompileError(f"{where}: expected a tile of holes, warps, stages")
    return Config(**{**entry, "tile": Tile(**tile)})
