"""Symptom: tests of passes fail now and then (vllm#49770).

Cause: a warm cache of compiled programs skips the passes whose matches the test counts.

Why this input: the same program twice through the same pipeline in one process, with the kernel cache on and warm. The
counts are the same, since nothing between a program and its passes is cached; and the tests of passes run with the
cache off (`_without_kernel_cache` in their conftest), so that none can come to lean on it.
"""

from pathlib import Path

import pytest
from chain import chain

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.definitions import context_of
from dsv41c.passes.dead_code import DeadCode
from dsv41c.passes.manager import PassManager
from dsv41c.passes.plan_memory import PlanMemory


def counts() -> list[tuple[str, dict[str, int]]]:
    """What each pass of a small pipeline did, by its name."""
    module = chain(64)
    manager = PassManager([DeadCode(), PlanMemory(budget=1 << 20), DeadCode()], context_of(module))
    manager.run(module)
    return [(report.name, dict(report.matches)) for report in manager.reports]


def test_a_warm_cache_skips_no_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSV41C_CACHE", str(tmp_path))
    KernelCache.default().store("0" * 64, b"something")
    first = counts()
    assert [name for name, _ in first] == ["dead-code", "plan-memory", "dead-code"]
    assert counts() == first
    monkeypatch.setenv("DSV41C_CACHE", "off")
    assert KernelCache.default().load("0" * 64) is None
    assert counts() == first
