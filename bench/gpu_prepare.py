"""Makes what `bench/gpu.sh` takes to a machine with a GPU: plans, and what a decode step of mini6 must give.

python bench/gpu_prepare.py OUTPUT [--target cuda:sm_90] [--checkpoint tests/golden/mini6] [--config DIR]

OUTPUT/plan                  the checkpoint's plan for the GPU
OUTPUT/kernels               a plan of kernels alone, of the config's sizes (the released model's by default)
OUTPUT/checks.safetensors    inputs and caches of a decode step, and each value of it as the IR interpreter has it
OUTPUT/checkpoint            a copy of the checkpoint, without its golden outputs
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from dsv41c.compiler import driver
from dsv41c.compiler.artifact import staged_folder, write_files
from dsv41c.compiler.codegen.mlir.iree import KernelCache
from dsv41c.compiler.codegen.triton.configs import configs_of
from dsv41c.compiler.codegen.triton.device_program import device_program
from dsv41c.compiler.codegen.triton.families import kernels_of
from dsv41c.compiler.codegen.triton.lowering import lower_for_gpu
from dsv41c.compiler.codegen.triton.targets import parse_target
from dsv41c.compiler.gpu_kernels import compile_for_gpus
from dsv41c.compiler.gpu_programs import DECODE
from dsv41c.ir.builder import functions
from dsv41c.ir.interpreter import Interpreter
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.config import ModelConfig
from dsv41c.models.rows import step_inputs
from dsv41c.models.session import EagerSession
from dsv41c.models.state import DEFAULT_PAGE_TOKENS
from dsv41c.models.weights import load_backbone, stacked_names
from dsv41c.runtime.plan_format import (
    FORMAT_VERSION,
    LAUNCHES,
    CheckpointEntry,
    LaunchList,
    Manifest,
    Target,
    encode_launches,
    encode_manifest,
)

PAGE_TOKENS, ROWS, SEQUENCES = 16, 64, 16
_CONTEXT = 37  # tokens that each sequence has in its caches before the step
_GOLDEN = Path("tests/golden")


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the folder; the arguments are those of the module's command line."""
    parser = argparse.ArgumentParser(prog="python bench/gpu_prepare.py", description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--target", default="cuda:sm_90")
    parser.add_argument("--checkpoint", type=Path, default=_GOLDEN / "mini6")
    parser.add_argument("--config", type=Path, default=_GOLDEN / "released")
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    options = driver.CompileOptions(
        (given.target,), page_tokens=PAGE_TOKENS, max_rows=ROWS, max_sequences=SEQUENCES, cache=KernelCache.default()
    )
    copied = given.output / "checkpoint"
    copied.mkdir(exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(given.checkpoint / name, copied / name)
    shutil.copy(given.checkpoint.parent / driver.TOKENIZER, copied / driver.TOKENIZER)
    driver.compile_checkpoint(copied, given.output / "plan", options, _report)
    write_kernels(given.config, given.target, given.output / "kernels")
    write_checks(copied, options, given.output / "checks.safetensors")


def write_kernels(config: Path, target: str, folder: Path) -> None:
    """A plan that has the kernels of a config's folder, and no programs and weights."""
    gpu = parse_target(target)
    configs = configs_of(gpu)
    tuned = {} if configs is None else {target: configs}
    kernels = kernels_of(ModelConfig.from_json(config))
    made = compile_for_gpus(kernels, [gpu], tuned, KernelCache.default(), progress=_report)
    files = {**made.files, LAUNCHES: encode_launches(LaunchList({}))}
    manifest = Manifest(
        format=FORMAT_VERSION,
        model=json.loads((config / "config.json").read_text()),
        targets=(Target(target),),
        shape_ranges={},
        passes=(),
        tools={name: version(name) for name in ("torch", "triton")},
        page_tokens=DEFAULT_PAGE_TOKENS,
        state=(),
        memory={},
        kernels=made.entries,
        weights={},
        checkpoint=CheckpointEntry("", {}),
        tokenizer=None,
        programs={},
        digests={name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())},
    )
    with staged_folder(folder) as staging:
        write_files(staging, files | encode_manifest(manifest))


def write_checks(checkpoint_folder: Path, options: driver.CompileOptions, path: Path) -> None:
    """Inputs, caches and all values of a decode step of four sequences."""
    checkpoint = Checkpoint.open(checkpoint_folder)
    tokenizer = checkpoint_folder / driver.TOKENIZER
    constants = driver.derived_constants(checkpoint.config, tokenizer)

    def weights(symbol: str) -> Tensor | Sequence[Tensor]:
        if symbol in constants:
            return constants[symbol]
        tensors = [checkpoint.tensor(name) for name in stacked_names(symbol, checkpoint.config.n_routed_experts)]
        return tensors if "*" in symbol else tensors[0]

    lowered = driver.lower_config(checkpoint.config, options)
    module = lower_for_gpu(lowered.traced, checkpoint.config, lowered.ranges.symbols())
    step = functions(module)[driver.PROGRAM]
    code = device_program(step, module, [4], few=True)
    inputs, caches = _decode_inputs(checkpoint, str(tokenizer))
    values: dict[str, Tensor] = {}
    with torch.no_grad():
        after = Interpreter(weights, values.__setitem__).run(step, inputs | caches)
    # A result that no launch names is one that nobody reads: it has no memory.
    used = {arg for launch in code.program.launches for arg in launch.args}
    results = {place: [name for name in op.results if name in used] for place, op in code.finished.items()}
    ops = {str(place): [op.kernel, *results[place]] for place, op in code.finished.items()}
    kept = {f"input/{name}": value for name, value in inputs.items()}
    for name, cache in caches.items():
        kept[f"before/{name}"], kept[f"after/{name}"] = cache, after[name]
    for names in results.values():
        kept |= {f"value/{name}": values[name.removeprefix("%")] for name in names}
    metadata = {"program": DECODE, "ops": json.dumps(ops)}
    save_file({name: value.contiguous().clone() for name, value in kept.items()}, path, metadata)


def _decode_inputs(checkpoint: Checkpoint, tokenizer: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A decode step behind prompts of random tokens, its block table as wide as a graph has it."""
    session = EagerSession(load_backbone(checkpoint, tokenizer, PAGE_TOKENS), 4, 64)
    generator = torch.Generator().manual_seed(5)
    lengths = [_CONTEXT - 7 * number for number in range(4)]
    prompts = {n: torch.randint(5, 200, (length,), generator=generator).tolist() for n, length in enumerate(lengths)}
    session.forward(prompts)
    chunks = [session.chunk(number, [11 + number]) for number in range(4)]
    inputs = step_inputs(chunks, list(range(4)))
    width = inputs["pages"].shape[1]
    wide = 1 << (width - 1).bit_length()
    inputs["pages"] = torch.nn.functional.pad(inputs["pages"], (0, wide - width))
    return inputs, dict(session.caches)


def _report(what: str, done: int, total: int) -> None:
    print(f"{what} ({done}/{total})", flush=True)


if __name__ == "__main__":
    main()
