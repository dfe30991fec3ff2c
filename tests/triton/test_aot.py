"""Kernels compile for GPU targets without a GPU, and what a target cannot hold is refused by name."""

from dataclasses import replace
from pathlib import Path

import pytest

from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.codegen.triton import aot, worker
from dsv41c.compiler.codegen.triton.families import Kernel, Tile, fits
from dsv41c.compiler.codegen.triton.kernels import cache_rows
from dsv41c.compiler.codegen.triton.targets import TARGETS, parse_target
from dsv41c.errors import CompileError

STORE = cache_rows.store_plain("store_tail", "fp32", 1024)
INDEX = cache_rows.writer("write_index", "fp4_e8m0", 128, 64, True, 64, 4352)
SLOW = """
import triton
import triton.language as tl


@triton.jit
def slow_kernel(x_ptr, STEPS: tl.constexpr):
    x = tl.load(x_ptr)
    for step in tl.static_range(STEPS):
        x += step
    tl.store(x_ptr, x)
"""
SM_80, SM_90, GFX942 = (parse_target(name) for name in ("cuda:sm_80", "cuda:sm_90", "hip:gfx942"))


def test_one_source_for_cuda_and_hip(tmp_path: Path) -> None:
    kept = KernelCache(tmp_path)
    jobs = [(STORE, SM_80), (STORE, GFX942)]
    cuda, hip = aot.compile_kernels(jobs, kept)
    assert (cuda.kernel, cuda.target, hip.target) == ("store_tail", "cuda:sm_80", "hip:gfx942")
    assert cuda.binary[:4] == hip.binary[:4] == b"\x7fELF"
    assert ".target sm_80" in cuda.assembly
    assert "gfx942" in hip.assembly
    assert all(one.registers > 4 and one.spill_bytes == 0 and one.load_bits == 128 for one in (cuda, hip))
    assert (cuda.symbol, cuda.warps, cuda.tile, cuda.refused) == ("store_plain_kernel", 4, 0, [])
    assert aot.compile_kernels(jobs, kept) == [cuda, hip]
    assert (kept.hits, kept.misses) == (2, 2)


def test_takes_the_first_tile_that_fits() -> None:
    small = replace(SM_90, shared_limit=600)
    compiled = aot.compile_kernel(INDEX.with_tiles(Tile({"ROWS": 16}), Tile({"ROWS": 4})), small)
    assert compiled.tile == 1
    assert compiled.shared_bytes <= 600
    assert len(compiled.refused) == 1
    assert "bytes of shared memory, the limit is 600" in compiled.refused[0]
    with pytest.raises(CompileError, match=r"write_index.*cuda:sm_90.*\d+ bytes of shared memory, the limit is 600"):
        aot.compile_kernel(INDEX.with_tiles(Tile({"ROWS": 16})), small)


def test_a_kernel_that_does_not_compile_is_named() -> None:
    with pytest.raises(CompileError, match=r"store_tail.*do not match store_plain_kernel: WIDTH"):
        aot.compile_kernel(replace(STORE, holes={}), SM_80)


def test_a_trap_is_no_kernel() -> None:
    """Seen with too much tensor memory on sm_100: a body of one instruction, and no error."""
    assert worker._body_problems("{\n\ttrap;\n}", SM_90) == ["the compiled body stores nothing (it is a trap)"]
    assert worker._body_problems("s_endpgm", GFX942) == ["the compiled body stores nothing (it is empty)"]
    assert worker._body_problems("st.global.b32 [%rd1], %r1;", SM_90) == []


def test_a_tile_that_takes_too_long_is_refused() -> None:
    slow = replace(STORE, generated=SLOW, function="slow_kernel", arguments={"x_ptr": "*fp32"}, holes={}, unaligned=())
    with pytest.raises(CompileError, match=r"store_tail.*'STEPS': 1000000}: compiling took more than 1 s"):
        aot.compile_kernels([(slow.with_tiles(Tile({"STEPS": 10**6})), SM_80)], seconds=1)


def test_the_next_tile_is_taken_after_one_that_takes_too_long() -> None:
    attempts = [({}, ["compiling took more than 120 s"]), ({"spill_bytes": 8}, []), ({"spill_bytes": 4}, [])]
    tiles = tuple(Tile({"ROWS": rows}) for rows in (16, 4, 1))
    taken = worker.compile_tiles(INDEX.with_tiles(*tiles), SM_80, lambda number: attempts[number])
    assert (taken["tile"], taken["spill_bytes"]) == (2, 4)
    assert taken["refused"] == ["tile {'ROWS': 16}: compiling took more than 120 s", "tile {'ROWS': 4}: 8 bytes spill"]


def test_tensor_memory_is_limited() -> None:
    problems = fits(parse_target("cuda:sm_100"), 1024, 576)
    assert problems == ["576 columns of tensor memory, the limit is 512"]
    assert fits(parse_target("cuda:sm_100"), 227 * 1024, 512) == []


def test_targets() -> None:
    assert parse_target("cuda:sm_120").shared_limit == 99 * 1024
    assert [name for name, target in TARGETS.items() if target.tensor_memory] == ["cuda:sm_100", "cuda:sm_103"]
    with pytest.raises(CompileError, match="no GPU target 'cuda:sm_70'; choose one of cuda:sm_75"):
        parse_target("cuda:sm_70")


def test_key_names_everything() -> None:
    key = aot.kernel_key(STORE, SM_80)
    others = [(STORE.with_holes(WIDTH=512), SM_80), (STORE, SM_90), (STORE.with_tiles(Tile({"ROWS": 2})), SM_80)]
    assert len({key, *(aot.kernel_key(*job) for job in others)}) == 4
    assert Kernel.from_json(INDEX.to_json()) == INDEX
