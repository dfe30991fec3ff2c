"""Symptom: a stale artifact and slowly wrong results, or a cache that never hits (vllm#16150, #16491, 1Cat-vLLM#621).

Cause: the cache key misses something that decides the artifact, or holds something that does not.

Why this input: each factor of a compiled kernel changed by itself must change its key; the surroundings must not.
"""

import pytest

from dsv41c.compiler.codegen.mlir import iree
from dsv41c.compiler.codegen.mlir.iree import CpuTarget, module_key
from dsv41c.passes.common_subexpressions import CommonSubexpressions
from dsv41c.passes.dead_code import DeadCode
from dsv41c.passes.pipeline import default_pipeline

TEXT = "module {}"


def test_every_factor_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    target = CpuTarget("x86-64-v3")
    keys = [module_key(TEXT, target), module_key("module { }", target)]
    keys += [module_key(TEXT, CpuTarget("x86-64-v4")), module_key(TEXT, CpuTarget("x86-64-v3", ("-fma",)))]
    for name, value in (("IREE_VERSION", "0.0"), ("_FLAGS", (*iree._FLAGS, "--iree-opt-level=O1"))):
        with monkeypatch.context() as patch:
            patch.setattr(iree, name, value)
            keys.append(module_key(TEXT, target))
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", ["DSV41C_CACHE", "HOME", "PORT", "LOG_LEVEL", "OMP_NUM_THREADS"])
def test_the_surroundings_do_not(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = module_key(TEXT, CpuTarget("x86-64-v3"))
    monkeypatch.setenv(name, "/somewhere/else")
    assert module_key(TEXT, CpuTarget("x86-64-v3")) == before


def test_every_pass_has_its_own_digest() -> None:
    """A plan lists them; the same pass twice in a pipeline has one."""
    digests = {pass_.text(): pass_.digest() for pass_ in default_pipeline()}
    assert len(set(digests.values())) == len(digests)
    assert DeadCode().digest() == digests[DeadCode().text()]
    assert CommonSubexpressions().digest() != DeadCode().digest()
