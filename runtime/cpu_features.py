"""The CPU features that a plan's kernels use, against those of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["missing_features"]

# LLVM's feature names that the operating system spells differently in more than its separators.
_FEATURE_ALIASES = {"bmi": "bmi1", "lzcnt": "abm", "sse3": "pni"}


def missing_features(required: Sequence[str], cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The CPU features among `required` that this machine lacks, in order.

    Args:
        required: LLVM's names, as in the manifest's target ("avx512bw", "sse4.2").
        cpuinfo: where the operating system lists them; on a system without it nothing is reported missing.
    """
    if not cpuinfo.exists():
        return []
    present: set[str] = set()
    for line in cpuinfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            present.update(_plain(flag) for flag in value.split())
    if not present:
        return []

    return [f for f in required if _plain(f) not in present and _FEATURE_ALIASES.get(f, _plain(f)) not in present]


def _plain(feature: str) -> str:
    return feature.replace("_", "").replace(".", "").replace("-", "").lower()
