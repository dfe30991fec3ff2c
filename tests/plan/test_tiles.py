"""Programs whose launches run over tiles of rows: the numbers of all rows at once, in the interpreter and in a plan."""

import hashlib
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tolerances import WHOLE_MODEL
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

import dsv41c
from dsv41c.compiler.definitions import context_of
from dsv41c.compiler.launch_list import program_of
from dsv41c.ir.builder import FunctionBuilder, functions, get_symbols, has_one_row
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.rows import ROWS, rows_of
from dsv41c.ir.text import parse_module
from dsv41c.ir.transient import cut_of, launches_of, tiles_of, transient_peak
from dsv41c.ir.types import CacheType, TensorType
from dsv41c.passes.manager import PassManager, run_pass
from dsv41c.passes.plan_memory import PlanMemory
from dsv41c.runtime.kernels.scratch import scratch_bytes
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import LAUNCHES, MANIFEST, MANIFEST_DIGEST, LaunchList, encode_launches
from dsv41c.runtime.sampling import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden" / "mini6"
PLAN_PAGE_TOKENS = 16  # of the plan that all tests share


@cache
def lowered(plan: Path) -> ModuleOp:
    return parse_module((plan / "programs" / "step.mlir").read_text())


def in_tiles(plan: Path, folder: Path, rows: int) -> Path:
    """A copy of a plan whose programs of many rows run in tiles of so many rows."""
    module = PassManager([PlanMemory(rows=rows)], context_of(lowered(plan))).run(lowered(plan))
    old = Plan.load(plan).programs
    programs = {name: program_of(functions(module)[name], program.of) for name, program in old.items()}
    copy = folder / f"tiles{rows}"
    shutil.copytree(plan, copy)
    launches = encode_launches(LaunchList(programs))
    (copy / LAUNCHES).write_bytes(launches)
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["digests"][LAUNCHES] = hashlib.sha256(launches).hexdigest()
    body = json.dumps(manifest).encode()
    (copy / MANIFEST).write_bytes(body)
    (copy / MANIFEST_DIGEST).write_text(f"{hashlib.sha256(body).hexdigest()}  {MANIFEST}\n")
    return copy


@pytest.mark.parametrize("rows", [48])
def test_a_prompt_in_tiles_is_the_prompt_at_once(mini6_plan: Path, tmp_path: Path, rows: int) -> None:
    """100 rows in tiles that do not divide them, 16 in one tile; a product's rounding may depend on its rows."""
    golden = load_file(GOLDEN / "outputs.safetensors")
    copy = in_tiles(mini6_plan, tmp_path, rows)
    assert any(launch.over for launch in Plan.load(copy).programs["step"].launches), "streams are written over"
    tiled = dsv41c.load(copy)
    params = SamplingParams(max_new_tokens=0, collect_logits=True)
    for prompt in ("p16", "p100"):
        (run,) = tiled.generate([golden[f"{prompt}.ids"].tolist()], params)
        assert run.prefill_logits is not None
        difference = (run.prefill_logits - golden[f"{prompt}.logits"]).abs().amax(-1)
        assert difference.median() <= WHOLE_MODEL.median
        agreement = (run.prefill_logits.argmax(-1) == golden[f"{prompt}.logits"].argmax(-1)).float().mean()
        assert agreement >= WHOLE_MODEL.argmax


def arguments_of(func: FuncOp, rows: int) -> list[torch.Tensor]:
    """Small integers and numbers near one; sizes that are symbols are four, but for the rows."""
    sizes = dict.fromkeys(get_symbols(func), 4) | {ROWS: rows}
    generator = torch.Generator().manual_seed(rows)
    values = []
    for argument in func.args:
        type_ = argument.type.storage if isinstance(argument.type, CacheType) else argument.type
        assert isinstance(type_, TensorType)
        shape = type_.shape(sizes)
        whole = not type_.dtype.is_floating_point
        value = torch.randint(0, 4, shape, generator=generator) if whole else torch.randn(shape, generator=generator)
        values.append(value.to(type_.dtype))
    return values


def launching(func: FuncOp, module: ModuleOp) -> FuncOp:
    """A program that launches a function on its own arguments, added to the module."""
    b = FunctionBuilder("program", {str(a.name_hint): a.type for a in func.args}, get_symbols(func))
    results = b.launch(func.sym_name.data, list(b.args.values()), [r.type for r in func.body.block.last_op.operands])
    program = b.finish({f"y{i}": result for i, result in enumerate(results)})
    module.body.block.add_op(program)
    return program


def has_product(func: FuncOp) -> bool:
    return any(op.name in ("torch.aten.linear", "torch.aten.matmul") for op in func.body.block.ops)


def test_functions_that_count_as_row_by_row_are(mini6_plan: Path) -> None:
    """Each function that may be cut, over seven rows at once and over tiles of three: equal bits.

    Only torch's products of fp32 round by the number of rows; what comes of one is as near as that.
    """
    interpreter, found = Interpreter(lambda symbol: torch.empty(0)), 0
    for name, func in functions(lowered(mini6_plan)).items():
        if not name.startswith("region_") or has_one_row(func) or rows_of(func) is None:
            continue
        found += 1
        module = ModuleOp([func.clone()])
        program = launching(func, module)
        inputs = dict(zip([str(a.name_hint) for a in func.args], arguments_of(func, 7), strict=True))
        whole = interpreter.run(program, inputs)
        run_pass(PlanMemory(rows=3), module, context_of(module), None)
        assert any(tile.rows == 3 for tile in tiles_of(launches_of(program)))
        for result, value in interpreter.run(program, inputs).items():
            if has_product(func) and value.dtype == torch.float32:
                assert torch.allclose(value, whole[result], rtol=1e-5, atol=1e-6), f"{name}, {result}"
                continue
            assert torch.equal(value.view(torch.uint8), whole[result].view(torch.uint8)), f"{name}, {result}"
    assert found >= 8


def test_what_reads_other_rows_is_not_cut(mini6_plan: Path) -> None:
    """Every attention takes all fresh rows of the chunk, and the layers between attentions are in tiles."""
    module = PassManager([PlanMemory(rows=16)], context_of(lowered(mini6_plan))).run(lowered(mini6_plan))
    tiles = [tile for tile in tiles_of(launches_of(functions(module)["step"])) if tile.rows]
    kernels = [op.kernel.data for tile in tiles for op in tile.launches]
    assert kernels.count("attend") + kernels.count("sparse_attention") == 6
    assert not {"store"}.intersection(kernels)
    for tile in tiles:
        made = {result for op in tile.launches for result in op.results}
        for op in tile.launches:
            cut = cut_of(op)
            assert not made.intersection(slot for at, slot in enumerate(op.slots()) if at not in cut)


def planned_peak(step: FuncOp, context: int) -> int:
    pages = context // PLAN_PAGE_TOKENS
    return transient_peak(step, {"T": 512, "B": 1, "P": pages, "R": 1, "N": pages, "S": 1}, scratch_bytes).bytes


@pytest.mark.parametrize(("rows", "context"), [(0, 262_144), (48, 4096)])
def test_measured_bytes_stay_under_the_planned_peak(mini6_plan: Path, tmp_path: Path, rows: int, context: int) -> None:
    """512 rows at the end of a context, at once and in tiles.

    The allocators' own counts, torch's and IREE's, against what the plan promises.
    """
    plan = in_tiles(mini6_plan, tmp_path, rows) if rows else mini6_plan
    script, sizes = Path(__file__).with_name("measure_peak.py"), ["512", str(context)]
    done = subprocess.run([sys.executable, script, plan, *sizes], capture_output=True, text=True, check=True)
    measured = sum(json.loads(done.stdout).values())
    module = PassManager([PlanMemory(rows=rows)], context_of(lowered(mini6_plan))).run(lowered(mini6_plan).clone())
    planned = planned_peak(functions(module)["step"], context)
    assert measured <= planned <= 2 * measured
