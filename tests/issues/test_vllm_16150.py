"""Symptom: a stale artifact and slowly wrong results, or a cache that never hits (vllm#16150, #16491, 1Cat-vLLM#621).

Cause: the cache key misses something that decides the artifact, or holds something that does not.

Why this input: each factor of a compiled kernel changed by itself must change its key; the surroundings must not.
"""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from dsv41c.compiler.codegen.mlir import iree
from dsv41c.compiler.codegen.mlir.iree import CpuTarget, module_key
from dsv41c.compiler.codegen.triton import aot
from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import cache_rows
from dsv41c.compiler.codegen.triton.targets import parse_target
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


KERNEL = cache_rows.writer("write", "fp8_e8m0", 64, 16, True, 8, 528)
GPU = parse_target("cuda:sm_90")


def test_every_factor_changes_the_key_of_a_gpu_kernel() -> None:
    """Every field of the kernel and of its target, one at a time."""
    other = {
        "name": "other",
        "family": "activations",
        "function": "other",
        "arguments": {**KERNEL.arguments, "eps": "fp64"},
        "holes": {**KERNEL.holes, "PAGE": 16},
        "tiles": (Tile({"ROWS": 4}, warps=8), *KERNEL.tiles[1:]),
        "grid": (("n_rows", 1),),
        "unaligned": ("x_ptr",),
        "multiples": ("n_rows",),
        "sizes": ("n_more",),
        "fp_fusion": True,
        "generated": "import triton\n",
    }
    keys = [aot.kernel_key(replace(KERNEL, **{name: value}), GPU) for name, value in other.items()]
    assert {"name", *other} == {field.name for field in fields(KERNEL)}
    for field in fields(GPU):
        value = getattr(GPU, field.name)
        changed = f"{value}0" if isinstance(value, str) else not value if isinstance(value, bool) else value + 1
        keys.append(aot.kernel_key(KERNEL, replace(GPU, **{field.name: changed})))
    assert len({aot.kernel_key(KERNEL, GPU), *keys}) == len(keys) + 1


def test_sources_and_compiler_change_the_key_of_a_gpu_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The family's own file, the files that it imports, the worker; and Triton's version."""
    keys, read = [aot.kernel_key(KERNEL, GPU)], Path.read_text
    for name in ("cache_rows.py", "formats.py", "rows.py", "worker.py"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda path, name=name: read(path) + "#" * (path.name == name))
            keys.append(aot.kernel_key(KERNEL, GPU))
    with monkeypatch.context() as patch:
        patch.setattr(aot, "_triton_version", lambda: "0.0")
        keys.append(aot.kernel_key(KERNEL, GPU))
    assert len(set(keys)) == 6


@pytest.mark.parametrize("name", ["DSV41C_CACHE", "HOME", "PORT", "LOG_LEVEL", "OMP_NUM_THREADS", "TRITON_CACHE_DIR"])
def test_the_surroundings_do_not(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    before = module_key(TEXT, CpuTarget("x86-64-v3")), aot.kernel_key(KERNEL, GPU)
    monkeypatch.setenv(name, "/somewhere/else")
    assert (module_key(TEXT, CpuTarget("x86-64-v3")), aot.kernel_key(KERNEL, GPU)) == before


def test_every_pass_has_its_own_digest() -> None:
    """A plan lists them; the same pass twice in a pipeline has one."""
    digests = {pass_.text(): pass_.digest() for pass_ in default_pipeline()}
    assert len(set(digests.values())) == len(digests)
    assert DeadCode().digest() == digests[DeadCode().text()]
    assert CommonSubexpressions().digest() != DeadCode().digest()
