"""What the GPU targets differ in, as data: the kernels' sources are the same for all of them."""

from dataclasses import asdict, dataclass
from typing import Any

from dsv41c.errors import CompileError

__all__ = ["TARGETS", "GpuTarget", "parse_target"]

_KIB = 1024


@dataclass(frozen=True)
class GpuTarget:
    """One GPU architecture.

    Attributes:
        name: as users write it, `cuda:sm_90` or `hip:gfx942`.
        backend: Triton's backend, "cuda" or "hip".
        arch: Triton's architecture, 90 or "gfx942".
        warp: threads a warp; launches need it, kernels never do.
        shared_limit: bytes of shared memory that one program may use.
        tensor_memory: columns of tensor memory, 0 where the architecture has none.
        fp8_casts: the hardware casts to and from e4m3; elsewhere kernels do it by integer shifts.
    """

    name: str
    backend: str
    arch: int | str
    warp: int
    shared_limit: int
    tensor_memory: int
    fp8_casts: bool

    @property
    def binary(self) -> str:
        """The kind of Triton's binary, which is also its file suffix."""
        return "cubin" if self.backend == "cuda" else "hsaco"

    @property
    def assembly(self) -> str:
        """The kind of text that the binary is made of."""
        return "ptx" if self.backend == "cuda" else "amdgcn"

    def to_json(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)


def _cuda(version: int, shared_kib: int, tensor_memory: int = 0, fp8_casts: bool = True) -> GpuTarget:
    return GpuTarget(f"cuda:sm_{version}", "cuda", version, 32, shared_kib * _KIB, tensor_memory, fp8_casts)


def _hip(arch: str, warp: int, fp8_casts: bool = True) -> GpuTarget:
    return GpuTarget(f"hip:{arch}", "hip", arch, warp, 64 * _KIB, 0, fp8_casts)


_ALL = (
    _cuda(75, 64, fp8_casts=False),
    _cuda(80, 163, fp8_casts=False),
    _cuda(86, 99, fp8_casts=False),
    _cuda(89, 99),
    _cuda(90, 227),
    _cuda(100, 227, tensor_memory=512),
    _cuda(103, 227, tensor_memory=512),
    _cuda(120, 99),
    _cuda(121, 99),
    _hip("gfx90a", 64, fp8_casts=False),
    # Triton casts there too, but in software of its own: the hardware's e4m3 is another one, or there is none.
    _hip("gfx942", 64, fp8_casts=False),
    _hip("gfx950", 64),
    _hip("gfx1100", 32, fp8_casts=False),
    _hip("gfx1201", 32),
)
TARGETS = {target.name: target for target in _ALL}


def parse_target(name: str) -> GpuTarget:
    """The target of a name such as `cuda:sm_80` or `hip:gfx942`.

    Raises:
        CompileError: there is no such target; the message lists all.
    """
    if name not in TARGETS:
        raise CompileError(f"there is no GPU target {name!r}; choose one of {', '.join(TARGETS)}")
    return TARGETS[name]
