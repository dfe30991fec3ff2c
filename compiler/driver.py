"""From a checkpoint to a plan: the order of the whole compilation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp

from dsv41c.compiler.artifact import staged_folder, write_files
from dsv41c.compiler.bill import Programs, bill_of
from dsv41c.compiler.codegen.mlir.iree import CpuTarget, KernelCache, compile_linalg
from dsv41c.compiler.codegen.mlir.lower import lower_regions
from dsv41c.compiler.codegen.mlir.views import compile_views
from dsv41c.compiler.codegen.triton.configs import Configs, configs_of, read_configs
from dsv41c.compiler.codegen.triton.targets import TARGETS as GPU_TARGETS
from dsv41c.compiler.codegen.triton.targets import GpuTarget, parse_target
from dsv41c.compiler.definitions import ALONE, COMPOSED, DEFINITIONS, WHOLE, Definitions
from dsv41c.compiler.importer import import_program
from dsv41c.compiler.launch_list import buckets_of, program_of
from dsv41c.compiler.probe import checkpoint_probe
from dsv41c.compiler.trace import Ranges, trace_backbone
from dsv41c.errors import CompileError
from dsv41c.ir.builder import fixed_sizes, functions, module_of
from dsv41c.ir.ops.program import Launch, Weight
from dsv41c.ir.text import print_module
from dsv41c.ir.types import TensorType
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.config import ModelConfig
from dsv41c.models.engram_tables import engram_tables, read_tokenizer
from dsv41c.models.ops import LIST
from dsv41c.models.state import DEFAULT_PAGE_TOKENS, StateSpec, state_specs
from dsv41c.models.weights import empty_backbone, stacked_names
from dsv41c.passes.derive_replay import REPLAY
from dsv41c.passes.manager import PassManager, PassReport, Probe
from dsv41c.passes.pass_base import PassContext
from dsv41c.passes.pipeline import PHASES, default_pipeline
from dsv41c.passes.specialize_rows import SUFFIX
from dsv41c.passes.split_ced import ENCODE, TAIL
from dsv41c.runtime.kernels import registry
from dsv41c.runtime.kernels.scratch import scratch_bytes
from dsv41c.runtime.plan_format import (
    CONSTANTS,
    FORMAT_VERSION,
    LAUNCHES,
    VIEWS,
    CheckpointEntry,
    CheckpointFile,
    KernelEntry,
    LaunchList,
    Manifest,
    PassRecord,
    Target,
    WeightEntry,
    WeightPart,
    encode_launches,
    encode_manifest,
)

if TYPE_CHECKING:
    from dsv41c.compiler.gpu_part import GpuPart

CPU = "cpu"
TARGETS = (CPU, *GPU_TARGETS)
TOKENIZER = "tokenizer.json"
DEFAULT_TRANSIENT_BUDGET = 2 << 30
PROGRAM = "step"
FORMATS_PHASE = 2  # of the pipeline: from here on products no longer show which formats they multiply
PROGRAMS = (PROGRAM, ENCODE, TAIL, REPLAY)
CPU_TEXT, GPU_TEXT = f"programs/{PROGRAM}.mlir", f"programs/{PROGRAM}.gpu.mlir"
_SLOT_IDS = torch.iinfo(LIST).max + 1
_TOOLS = ("torch", "torch-mlir", "iree-base-compiler", "iree-base-runtime", "xdsl")

Progress = Callable[[str, int, int], None]  # what is being done, steps done, steps in all


@dataclass(frozen=True)
class CompileOptions:
    """What a plan is made for.

    Attributes:
        targets: "cpu", names of GPU targets such as "cuda:sm_90", or several of them.
        tokenizer: tokenizer.json; None looks in the checkpoint's folder and in the one above it.
        page_tokens: tokens a page of the global caches; a multiple of every ratio.
        max_rows: most rows of one forward, a prefill chunk or a batch of decode steps.
        max_sequences: most sequences of one forward.
        transient_budget: most bytes that a forward may hold besides weights and caches, for every chunk and context of
            the declared ranges; where all rows at once take more, launches run over tiles of rows. 0 for any number.
        buckets: numbers of rows for which the step's values get places in one buffer; a call is padded to the next.
        skip: names of passes to leave out, to see what each brings.
        cpu: LLVM CPU name, or "host" for this machine's.
        jobs: compilers that run at once; None takes one a core.
        cache: where compiled kernels are kept; None compiles always.
        configs: files of tuned configs for GPU kernels, in place of those that come with the package.
        dump_ir: folder for the program's text before and after each pass.
        verify_each: interpret the program before and after each pass and compare.
    """

    targets: tuple[str, ...] = (CPU,)
    tokenizer: Path | None = None
    page_tokens: int = DEFAULT_PAGE_TOKENS
    max_rows: int = 512
    max_sequences: int = 64
    transient_budget: int = DEFAULT_TRANSIENT_BUDGET
    buckets: tuple[int, ...] = ()
    skip: frozenset[str] = frozenset()
    cpu: str = "host"
    jobs: int | None = None
    cache: KernelCache | None = None
    configs: tuple[Path, ...] = ()
    dump_ir: Path | None = None
    verify_each: bool = False


def compile_checkpoint(
    checkpoint: str | Path,
    output: str | Path,
    options: CompileOptions | None = None,
    progress: Progress = lambda what, done, total: None,
    on_pass: Callable[[PassReport], None] = lambda report: None,
) -> Path:
    """Compiles a checkpoint to a plan.

    Args:
        checkpoint: its folder, with config.json and safetensors files.
        output: the plan's folder; it appears whole or not at all.
        options: see `CompileOptions`.
        progress: called as the work goes on.
        on_pass: called with the report of each pass.
    Returns:
        the plan's folder.
    Errors: ConfigError, CheckpointError for bad input; CompileError for an unsupported target, or a program or disk
        that does not allow it.
    """
    options = options or CompileOptions()
    _check_targets(options.targets)
    progress("read the checkpoint", 0, 1)
    opened = Checkpoint.open(checkpoint)
    opened.verify()
    _check_pages(opened.config, options.page_tokens)
    with staged_folder(Path(output)) as folder:
        _Compilation(opened, options, progress, on_pass).write(folder)
    return Path(output)


def _check_targets(targets: tuple[str, ...]) -> None:
    for target in targets or ("",):
        if target not in TARGETS:
            raise CompileError(
                f"target '{target}' is unknown; supported are {', '.join(TARGETS)}; choose with --target"
            )
    repeated = sorted({target for target in targets if targets.count(target) > 1})
    if repeated:
        raise CompileError(f"target {', '.join(repeated)} is named twice; name each once with --target")


def _check_pages(config: ModelConfig, page_tokens: int) -> None:
    ratios = sorted({ratio for ratio in config.compress_ratios if ratio})
    if any(page_tokens % ratio for ratio in ratios):
        raise CompileError(
            f"page_tokens is {page_tokens}; a page must hold whole entries of every cache, so it is a multiple of the "
            f"model's compression ratios {', '.join(map(str, ratios))}: choose another with --page-tokens"
        )


def _check_buckets(options: CompileOptions) -> None:
    if any(rows > min(options.max_rows, options.max_sequences) for rows in options.buckets):
        raise CompileError(
            f"buckets {', '.join(map(str, options.buckets))}: a forward has at most {options.max_rows} rows and "
            f"{options.max_sequences} sequences; choose smaller ones with --buckets, or raise --max-rows and "
            "--max-sequences"
        )


def lower_config(
    config: ModelConfig,
    options: CompileOptions,
    progress: Progress = lambda *_: None,
    on_pass: Callable[[PassReport], None] = lambda report: None,
    probe: Probe | None = None,
    skip: frozenset[str] = frozenset(),
) -> Lowered:
    """Traces the step program of a config and runs the passes; reads no weights, so any size will do.

    Args:
        config, options, progress, on_pass: as in `compile_checkpoint`.
        probe: gives the inputs on which the program is compared before and after each pass; None compares nothing.
        skip: names of passes to leave out.
    """
    _check_buckets(options)
    model = empty_backbone(config, options.page_tokens)
    progress("trace the model", 0, 1)
    ranges = step_ranges(config, options)
    trace = trace_backbone(model, ranges)
    traced = module_of([import_program(PROGRAM, trace, config, options.page_tokens)])
    definitions = Definitions(ranges.symbols())
    context = PassContext(
        CPU,
        config,
        frozenset(DEFINITIONS),
        definitions.define,
        definitions.define_parts,
        WHOLE,
        ALONE,
        COMPOSED,
        scratch_bytes,
    )
    skip = skip | options.skip
    passes = [pass_ for pass_ in default_pipeline(options.transient_budget) if pass_.name not in skip]
    early = [pass_ for phase in PHASES for pass_ in phase.passes if phase.number < FORMATS_PHASE]
    of_the_network = sum(pass_.name not in skip for pass_ in early)
    network = functions(traced)[PROGRAM]

    def after_pass(report: PassReport, module: ModuleOp) -> None:
        nonlocal network
        if len(manager.reports) == of_the_network:
            network = functions(module)[PROGRAM].clone()
        progress(f"pass {report.name}", len(manager.reports), len(passes))
        on_pass(report)

    manager = PassManager(passes, context, options.dump_ir, verify_each=probe, on_pass=after_pass)
    module = manager.run(traced)
    records = tuple(PassRecord(pass_.text(), pass_.digest()) for pass_ in passes)
    return Lowered(module, ranges, records, manager.reports, network, traced, options.buckets)


@dataclass(frozen=True)
class Lowered:
    """A module of launches and the functions they run, with what made it.

    `network` is the step program after the rewrites of the network and before formats are chosen; costs are counted on
    it. `traced` is what the passes began with.
    """

    module: ModuleOp
    ranges: Ranges
    passes: tuple[PassRecord, ...]
    reports: list[PassReport]
    network: FuncOp
    traced: ModuleOp
    buckets: tuple[int, ...] = ()

    @property
    def programs(self) -> dict[str, FuncOp]:
        """The programs and their forms by name, the step first."""
        return {name: func for name, func in functions(self.module).items() if name.removesuffix(SUFFIX) in PROGRAMS}

    @property
    def regions(self) -> dict[str, FuncOp]:
        """The outlined functions by name."""
        return {name: func for name, func in functions(self.module).items() if name not in self.programs}

    def launch_list(self) -> LaunchList:
        """What the runtime runs."""
        forms = {name: None if name in PROGRAMS else name.removesuffix(SUFFIX) for name in self.programs}
        lists = {name: program_of(func, forms[name]) for name, func in self.programs.items()}
        step = self.programs[PROGRAM]
        lists[PROGRAM] = replace(lists[PROGRAM], buckets=buckets_of(step, self.buckets))
        return LaunchList(lists)

    def bill_programs(self) -> Programs:
        """What the bill is made from."""
        step = self.programs[PROGRAM]
        return Programs(self.network, step, self.programs.get(PROGRAM + SUFFIX, step), self.ranges.symbols())

    def kernel_names(self) -> set[str]:
        """The kernels that launches name."""
        ops = [op for func in self.programs.values() for op in func.body.block.ops]
        return {op.kernel.data for op in ops if isinstance(op, Launch)}


def step_ranges(config: ModelConfig, options: CompileOptions) -> Ranges:
    """The declared ranges of the step program's sizes; no pool has more rows than slot ids count.

    Args:
        config, options: as in `lower_config`.
    Raises:
        CompileError: one sequence, or the rings of all, would have more rows than that.
    """
    pages = -(-config.max_position_embeddings // options.page_tokens)
    specs = state_specs(config, options.page_tokens)
    return Ranges(
        rows=options.max_rows,
        sequences=options.max_sequences,
        pages=pages,
        logit_rows=options.max_rows,
        pool_pages=_pool_size(specs, "pages", at_most=1 << 24, at_least=pages),
        rings=_pool_size(specs, "rings", at_most=1 << 16, at_least=options.max_sequences),
    )


def _pool_size(specs: Sequence[StateSpec], pool: str, at_most: int, at_least: int) -> int:
    """The largest size of a pool in pages whose rows all have a slot id."""
    rows = max((spec.page for spec in specs if spec.pool == pool), default=1)
    size = min(at_most, _SLOT_IDS // rows)
    if size < at_least:
        raise CompileError(
            f"the pool of {pool} needs at least {at_least} pages of {rows} rows; supported are {_SLOT_IDS} rows, which "
            "slot ids of 32 bits count: lower max_position_embeddings, sliding_window, --page-tokens or --max-sequences"
        )
    return size


class _Compilation:
    def __init__(
        self,
        checkpoint: Checkpoint,
        options: CompileOptions,
        progress: Progress,
        on_pass: Callable[[PassReport], None],
    ) -> None:
        self.checkpoint, self.options, self.progress, self.on_pass = checkpoint, options, progress, on_pass
        self.config = checkpoint.config
        self.target = CpuTarget(options.cpu)
        # Asked for at once, because it is quick and refuses a CPU that is unknown.
        self.features = self.target.required_features if CPU in options.targets else ()
        self.gpus = [_gpu_target(name) for name in options.targets if name != CPU]
        self.configs = _configs(self.gpus, options.configs)

    def write(self, folder: Path) -> None:
        """Writes all files of the plan into an empty folder."""
        tokenizer = self._tokenizer()
        constants = derived_constants(self.config, tokenizer)
        probe = None
        if self.options.verify_each:
            probe = checkpoint_probe(self.checkpoint, tokenizer, constants, self.options.page_tokens)
        lowered = lower_config(self.config, self.options, self.progress, self.on_pass, probe)
        files: dict[str, bytes] = {}
        launches, kernels, bill = LaunchList({}), list[KernelEntry](), dict[str, Any]()
        programs, passes = list(lowered.programs.values()), lowered.passes
        if self.gpus:
            gpu = self._gpu_part(lowered)
            kernels += gpu.kernels
            files |= {**gpu.files, GPU_TEXT: print_module(gpu.module).encode()}
            launches, bill = LaunchList({}, dict(gpu.programs)), gpu.bill
            programs += [func for name, func in functions(gpu.module).items() if name in PROGRAMS]
            passes = (*passes, *(record for record in gpu.passes if record not in passes))
        if CPU in self.options.targets:
            compiled = self._compile_kernels(lowered)
            files |= {kernel.file: data for kernel, data in compiled if kernel.file}
            files[VIEWS] = compile_views(self.target)
            files[CPU_TEXT] = print_module(lowered.module).encode()
            launches = replace(lowered.launch_list(), device=launches.device)
            kernels = [*(kernel for kernel, _ in compiled), *kernels]
            own = bill_of(self.config, self.options.page_tokens, lowered.bill_programs())
            bill = {**own, "gpu": bill} if bill else own
        files[CONSTANTS] = save(constants)
        files[LAUNCHES] = encode_launches(launches)
        if tokenizer is not None:
            files[TOKENIZER] = tokenizer.read_bytes()
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
        weights = weight_table(programs, self.checkpoint)
        manifest = replace(
            self._manifest(lowered, kernels, tokenizer, weights), passes=passes, digests=digests, bill=bill
        )
        self.progress("write the plan", 0, 1)
        write_files(folder, files | encode_manifest(manifest))

    def _tokenizer(self) -> Path | None:
        """The tokenizer's file: as given, in the checkpoint's folder, or in the folder above it."""
        if self.options.tokenizer is not None:
            return self.options.tokenizer
        folder = self.checkpoint.folder.resolve()
        for candidate in (folder / TOKENIZER, folder.parent / TOKENIZER):
            if candidate.is_file():
                return candidate
        if self.config.engram_layer_ids:
            raise CompileError(
                f"there is no {TOKENIZER} in {folder} or above it; Engram hashes what it decodes: "
                "give it with --tokenizer"
            )
        return None

    def _gpu_part(self, lowered: Lowered) -> GpuPart:
        # Not above: Triton is an extra, which compiling for a CPU does not need.
        from dsv41c.compiler.gpu_part import gpu_part

        return gpu_part(self.config, self.options, lowered, PROGRAMS, self.gpus, self.configs, self.progress)

    def _compile_kernels(self, lowered: Lowered) -> list[tuple[KernelEntry, bytes]]:
        regions = lowered.regions
        done = 0

        def compile_region(name: str) -> tuple[KernelEntry, bytes]:
            nonlocal done
            data = compile_linalg(texts[name], self.target, self.options.cache)
            done += 1
            self.progress(f"compile {name}", done, len(regions))
            file = f"kernels/{name}.vmfb"
            sizes = fixed_sizes(regions[name])
            return KernelEntry(name, "iree", "portable", file, "kernel", CPU, sizes), data

        # Functions are all named alike, so that equal regions of two plans are one entry of the kernel cache.
        texts = {name: lower_regions({"kernel": func}) for name, func in regions.items()}
        with ThreadPoolExecutor(self.options.jobs or torch.get_num_threads()) as pool:
            compiled = list(pool.map(compile_region, regions))
        whole = sorted(lowered.kernel_names() - set(regions))
        return [*compiled, *((KernelEntry(name, "reference", registry.find(name).band), b"") for name in whole)]

    def _manifest(
        self, lowered: Lowered, kernels: list[KernelEntry], tokenizer: Path | None, weights: dict[str, WeightEntry]
    ) -> Manifest:
        folder = self.checkpoint.folder.resolve()
        files = {name: CheckpointFile(file.bytes, file.header_sha256) for name, file in self.checkpoint.files.items()}
        text = CPU_TEXT if CPU in self.options.targets else GPU_TEXT
        return Manifest(
            format=FORMAT_VERSION,
            model=json.loads((folder / "config.json").read_text()),
            targets=tuple(Target(name, self.features if name == CPU else ()) for name in self.options.targets),
            shape_ranges=lowered.ranges.symbols(),
            passes=lowered.passes,
            tools={name: version(name) for name in (*_TOOLS, *(["triton"] if self.gpus else []))},
            page_tokens=self.options.page_tokens,
            state=state_specs(self.config, self.options.page_tokens),
            memory=memory_bill(self.config, self.options.page_tokens, weights),
            kernels=tuple(kernels),
            weights=weights,
            checkpoint=CheckpointEntry(str(folder), files),
            tokenizer=TOKENIZER if tokenizer is not None else None,
            # One text for all: programs share the functions that they call.
            programs={name: text for name in PROGRAMS if name in lowered.programs},
            digests={},
        )


def _gpu_target(name: str) -> GpuTarget:
    if find_spec("triton") is None:
        raise CompileError(f"compiling for {name} needs Triton; install dsv41c[triton], or compile for {CPU}")
    return parse_target(name)


def _configs(targets: Iterable[GpuTarget], files: Iterable[Path]) -> dict[str, Configs]:
    """The tuned configs of targets: those of the files where one is for a target, else those of the package."""
    found = {configs.target: configs for configs in map(read_configs, files)}
    own = {target.name: found.get(target.name) or configs_of(target) for target in targets}
    unused = ", ".join(sorted(set(found) - set(own)))
    if unused:
        raise CompileError(f"tuned configs are given for {unused}, which is no target; add it with --target")
    return {name: configs for name, configs in own.items() if configs is not None}


def derived_constants(config: ModelConfig, tokenizer: Path | None) -> dict[str, torch.Tensor]:
    """The tensors that follow from config and tokenizer, by the name of their weight symbol."""
    model = empty_backbone(config)
    if config.engram_layer_ids:
        assert tokenizer is not None, "a model with Engram has a tokenizer here"
        model.set_engram_tables(engram_tables(config, read_tokenizer(tokenizer)))
    return {name: buffer.contiguous().clone() for name, buffer in model.named_buffers()}


def weight_table(programs: Iterable[FuncOp], checkpoint: Checkpoint) -> dict[str, WeightEntry]:
    """Where the bytes of every weight symbol of some programs lie."""
    table: dict[str, WeightEntry] = {}
    for op in (op for program in programs for op in program.body.block.ops):
        if not isinstance(op, Weight):
            continue
        symbol, type_ = op.symbol.data, op.result.type
        assert isinstance(type_, TensorType)
        shape = type_.shape({})
        if op.source.data == "derived":
            table[symbol] = WeightEntry(type_.element, shape, "derived", file=CONSTANTS, tensor=symbol)
            continue
        tensors = [checkpoint.tensors[name] for name in stacked_names(symbol, shape[0])]
        parts = tuple(WeightPart(tensor.name, tensor.file, tensor.offset, tensor.bytes) for tensor in tensors)
        table[symbol] = WeightEntry(type_.element, shape, "checkpoint", parts)
    return table


def memory_bill(config: ModelConfig, page_tokens: int, weights: Mapping[str, WeightEntry]) -> dict[str, Any]:
    """What stays in memory, in bytes: weights, a page of the global caches, the rings of a sequence."""
    specs = state_specs(config, page_tokens)
    return {
        "weights": sum(part.bytes for entry in weights.values() for part in entry.parts),
        "page": sum(spec.page_bytes for spec in specs if spec.pool == "pages"),
        "rings_per_sequence": sum(spec.page_bytes for spec in specs if spec.pool == "rings"),
    }
