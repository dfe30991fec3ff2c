"""Makes the programs that tests/ir uses importable here."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ir"))


@pytest.fixture(autouse=True)
def _without_kernel_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass does must not depend on what was compiled before."""
    monkeypatch.setenv("DSV41C_CACHE", "off")
