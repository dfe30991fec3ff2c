"""A decode step of mini6 as a device program: every buffer as the IR interpreter has it, and the reference's logits."""

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from dry_executor import DryExecutor
from op_bounds import assert_within_bounds
from safetensors.torch import load_file
from shared_folders import GOLDEN, once, tree_hash
from tolerances import STEP_LOGITS
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue

from dsv41c.compiler.codegen.triton.device_program import DeviceCode, device_program
from dsv41c.compiler.codegen.triton.lowering import lower_for_gpu
from dsv41c.compiler.driver import PROGRAM, CompileOptions, derived_constants, step_ranges
from dsv41c.compiler.importer import import_program
from dsv41c.compiler.trace import trace_backbone
from dsv41c.ir.builder import functions, module_of
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.names import value_names
from dsv41c.ir.text import parse_module, print_module
from dsv41c.ir.transient import launches_of
from dsv41c.ir.types import TensorType
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.rows import step_inputs
from dsv41c.models.session import EagerSession
from dsv41c.models.weights import empty_backbone, load_backbone, stacked_names
from dsv41c.runtime.padding import pad
from dsv41c.runtime.plan_format import LaunchList, encode_launches, launches_from_json

PAGE_TOKENS = 16
TOKENIZER = GOLDEN / "tokenizer.json"
BUCKET = 2


def write_lowered(folder: Path) -> None:
    """mini6 traced and lowered for GPUs, as text."""
    config = Checkpoint.open(GOLDEN / "mini6").config
    ranges = step_ranges(config, CompileOptions(page_tokens=PAGE_TOKENS))
    trace = trace_backbone(empty_backbone(config, PAGE_TOKENS), ranges)
    traced = module_of([import_program(PROGRAM, trace, config, PAGE_TOKENS)])
    text = print_module(lower_for_gpu(traced, config, ranges.symbols()))
    made = folder.with_suffix(".new")
    made.mkdir(exist_ok=True)
    (made / "lowered.mlir").write_text(text)
    made.rename(folder)


@pytest.fixture(scope="module")
def module() -> ModuleOp:
    folder = once(f"mini6-gpu-{tree_hash('mini6')}", write_lowered)
    return parse_module((folder / "lowered.mlir").read_text())


@pytest.fixture(scope="module")
def step(module: ModuleOp) -> DeviceCode:
    return device_program(functions(module)[PROGRAM], module, [BUCKET], few=True)


@cache
def constants() -> dict[str, Tensor]:
    return derived_constants(Checkpoint.open(GOLDEN / "mini6").config, TOKENIZER)


def weights(symbol: str) -> Tensor | Sequence[Tensor]:
    if symbol in constants():
        return constants()[symbol]
    checkpoint = Checkpoint.open(GOLDEN / "mini6")
    tensors = [checkpoint.tensor(name) for name in stacked_names(symbol, checkpoint.config.n_routed_experts)]
    return tensors if "*" in symbol else tensors[0]


@pytest.fixture(scope="module")
def decode() -> dict[str, Tensor]:
    """The inputs of the step behind the prompt p17, caches among them."""
    golden = load_file(GOLDEN / "mini6" / "outputs.safetensors")
    session = EagerSession(load_backbone(Checkpoint.open(GOLDEN / "mini6"), str(TOKENIZER), PAGE_TOKENS), 1, 64)
    session.forward({0: golden["p17.ids"].tolist()})
    token = golden["dec_p17_pub.tokens"][:1].tolist()
    return step_inputs([session.chunk(0, token)], [0]) | session.caches


def executor(step: DeviceCode, given: dict[str, Tensor]) -> tuple[DryExecutor, dict[str, Tensor], dict[str, Tensor]]:
    """A new executor, its caches, and the other inputs."""
    caches = {name: given[name].clone() for name in step.program.caches}
    inputs = {spec.name: given[spec.name] for spec in step.program.inputs}
    return DryExecutor(step.program, step.kernels, weights, caches), caches, inputs


def step_values(module: ModuleOp) -> dict[str, SSAValue]:
    """The tensors that the launches of the lowered step make, by name."""
    names = value_names(functions(module)[PROGRAM].body.block)
    made = [value for op in launches_of(functions(module)[PROGRAM]) for value in op.results]
    return {names[value]: value for value in made if isinstance(value.type, TensorType)}


def test_every_buffer_is_the_interpreters(module: ModuleOp, step: DeviceCode, decode: dict[str, Tensor]) -> None:
    """Behind each op its values are compared, and replaced by the interpreter's, so that no op hides behind another.

    The call is padded to its bucket: the padded row writes into no cache.
    """
    values: dict[str, Tensor] = {}
    _, caches, inputs = executor(step, decode)
    padded = pad(inputs, step.program.buckets[0]) | caches
    assert padded["positions"].tolist() == [17, -1]
    device, caches, inputs = executor(step, padded)
    with torch.no_grad():
        wanted = Interpreter(weights, values.__setitem__).run(functions(module)[PROGRAM], padded)
    compared: set[str] = set()

    def behind(launch: int) -> None:
        op = step.finished.get(launch)
        made = [name for name in op.results if name.removeprefix("%") in step.program.buffers] if op else []
        for name in made:
            ours, theirs = device.value(name), values[name.removeprefix("%")]
            assert_within_bounds(step.finished[launch].kernel, ours, theirs)
            ours.copy_(theirs)
            compared.add(name)

    device.run(inputs, behind)
    made_anywhere = {f"%{name}" for name, value in step_values(module).items() if values[name].numel()}
    assert compared == made_anywhere
    assert len(compared) > 100
    for name, written in caches.items():
        assert torch.equal(written, wanted[name]), name


def test_logits_are_the_references(step: DeviceCode, decode: dict[str, Tensor]) -> None:
    """The launches as the plan has them, from JSON, one after the other on the memory of a larger bucket."""
    text = encode_launches(LaunchList({}, {"step": step.program}))
    program = launches_from_json(json.loads(text)).device["step"]
    assert program == step.program
    device, _, inputs = executor(replace(step, program=program), decode)
    logits = device.run(inputs)["logits"]
    wanted = load_file(GOLDEN / "mini6" / "outputs.safetensors")["dec_p17_pub.logits"][:1]
    assert (logits - wanted).abs().max() <= STEP_LOGITS
    assert logits.argmax() == wanted.argmax()


def test_a_program_is_made_the_same_twice(module: ModuleOp, step: DeviceCode) -> None:
    again = device_program(functions(module)[PROGRAM], module, [BUCKET], few=True)
    assert encode_launches(LaunchList({}, {"step": again.program})) == encode_launches(
        LaunchList({}, {"step": step.program})
    )
    assert again.kernels == step.kernels
