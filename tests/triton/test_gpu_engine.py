"""A GPU plan of mini6 as users have it: compiled to a folder, loaded, and served by the engine over the CUDA executor.

What stands in is the assembler, whose binaries hold nothing, and the driver, which runs a function's kernel in
Triton's interpreter. Buckets, graphs, addresses, packed arguments and caches are those of a GPU.
"""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from interpreting_driver import InterpretingDriver
from safetensors.torch import load_file
from shared_folders import GOLDEN
from tolerances import STEP_LOGITS, UNFLIPPED_LOGITS

from dsv41c.compiler import gpu_kernels
from dsv41c.compiler.codegen.triton.aot import Compiled
from dsv41c.compiler.codegen.triton.families import Kernel, Tile
from dsv41c.compiler.codegen.triton.targets import GpuTarget
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint
from dsv41c.runtime.engine import Engine
from dsv41c.runtime.executor import cuda_backend
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.sampling import SamplingParams

TARGET = "cuda:sm_90"
KERNELS: dict[str, tuple[Kernel, Tile]] = {}


def assembled(jobs: Sequence[tuple[Kernel, GpuTarget]], *rest: object) -> list[Compiled]:
    """In place of `aot.compile_kernels`: a binary for each kernel that holds nothing."""
    made = []
    for kernel, target in jobs:
        number, tile = next((n, one) for n, one in enumerate(kernel.tiles) if target.name.startswith(one.targets))
        KERNELS[kernel.name] = kernel, tile
        numbers = dict.fromkeys(("registers", "spill_bytes", "shared_bytes", "tensor_memory", "scratch_bytes"), 0)
        texts = {"mma": [], "binary": b"binary", "assembly": "assembly", "refused": []}
        made.append(
            Compiled(kernel.name, target.name, number, kernel.name, tile.warps, **numbers, load_bits=128, **texts)
        )
    return made


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = tmp_path_factory.mktemp("gpu") / "mini6"
    stand_in = SimpleNamespace(compile_kernels=assembled, imported_sources=gpu_kernels.aot.imported_sources)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_kernels, "aot", stand_in)
        compile_checkpoint(
            GOLDEN / "mini6", path, CompileOptions((TARGET,), page_tokens=16, max_rows=64, max_sequences=2)
        )
    return Plan.load(path, target=TARGET)


def test_a_prompt_and_a_decode_step_are_the_references(plan: Plan) -> None:
    """The prompt in one call of many rows, then a call of one row, padded to its bucket and replayed as a graph."""
    golden = load_file(GOLDEN / "mini6" / "outputs.safetensors")
    driver = InterpretingDriver(TARGET, KERNELS)
    engine = Engine(plan, backend=cuda_backend(driver), max_sequences=2, cache_tokens=64)
    forced = tuple(golden["dec_p17_pub.tokens"][:1].tolist())
    params = SamplingParams(max_new_tokens=1, forced_tokens=forced, collect_logits=True, stop_at_eos=False)
    (run,) = engine.generate([golden["p17.ids"].tolist()], params)
    assert run.prefill_logits is not None
    assert run.decode_logits is not None
    assert (run.prefill_logits - golden["p17.logits"]).abs().max() <= UNFLIPPED_LOGITS
    assert len(run.decode_logits) == 1
    assert (run.decode_logits - golden["dec_p17_pub.logits"][:1]).abs().max() <= STEP_LOGITS
    launches = {name: len(program.launches) for name, program in plan.device.items()}
    assert len(driver.launched) == launches["step"] + launches["decode"]
