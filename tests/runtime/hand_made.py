"""A small plan folder made by hand: reference kernels, two compiled functions, mini6's own weights."""

import json
from dataclasses import replace
from pathlib import Path

import torch

from dsv41c.models.config import ModelConfig
from dsv41c.models.state import state_specs
from dsv41c.runtime.plan_format import (
    FORMAT_VERSION,
    CheckpointEntry,
    InputSpec,
    KernelEntry,
    Launch,
    LaunchList,
    Manifest,
    OutputSpec,
    PassRecord,
    Program,
    Target,
    WeightEntry,
    WeightPart,
    encode_manifest,
    file_digest,
    header_digest,
    read_safetensors_header,
)

GOLDEN = Path(__file__).parents[1] / "golden"
CHECKPOINT = GOLDEN / "mini6"
PAGE_TOKENS = 16

KERNELS = """\
module @kernels {
  func.func @negate(%a: tensor<?xf32>) -> tensor<?xf32> {
    %r = arith.negf %a : tensor<?xf32>
    return %r : tensor<?xf32>
  }
  func.func @expert(%x: tensor<?x?xbf16>, %scale: tensor<?xf32>, %w1: tensor<?x?xi8>, %s1: tensor<?x?xi8>,
      %w3: tensor<?x?xi8>, %s3: tensor<?x?xi8>, %w2: tensor<?x?xi8>, %s2: tensor<?x?xi8>) -> tensor<?x?xbf16> {
    %r = arith.negf %x : tensor<?x?xbf16>
    return %r : tensor<?x?xbf16>
  }
}
"""
_TYPES = {"F8_E4M3": "f8E4M3FN", "F8_E8M0": "ui8", "I8": "ui8", "BF16": "bf16", "F32": "f32"}
EXPERT_WEIGHTS = tuple(f"layers.0.ffn.experts.*.w{n}.{part}" for n in (1, 3, 2) for part in ("weight", "scale"))
ENGRAM = "layers.1.engram.embed"


def _checkpoint_weights() -> dict[str, WeightEntry]:
    header, start, _ = read_safetensors_header(CHECKPOINT / "model.safetensors")

    def part(name: str) -> WeightPart:
        begin, end = header[name]["data_offsets"]
        return WeightPart(name, "model.safetensors", start + begin, end - begin)

    def entry(symbol: str, names: list[str], lead: tuple[int, ...]) -> WeightEntry:
        info = header[names[0]]
        return WeightEntry(
            _TYPES[info["dtype"]], (*lead, *info["shape"]), "checkpoint", tuple(part(name) for name in names)
        )

    weights = {}
    for symbol in EXPERT_WEIGHTS:
        weights[symbol] = entry(symbol, [symbol.replace("*", str(e)) for e in range(8)], (8,))
    for symbol in (f"{ENGRAM}.weight", f"{ENGRAM}.scale"):
        weights[symbol] = entry(symbol, [symbol], ())
    return weights


def programs() -> LaunchList:
    def ids(name: str, *shape: str) -> InputSpec:
        return InputSpec(name, "si64", shape)

    experts = ("%x", "%ids", "%weights", *(f"@{symbol}" for symbol in EXPERT_WEIGHTS))
    expert_inputs = (InputSpec("x", "bf16", ("T", 128)), ids("ids", "T", "2"), InputSpec("weights", "f32", ("T", 2)))
    return LaunchList(
        {
            "step": Program(
                (ids("tokens", "T"), ids("logit_rows", "R")),
                (),
                (OutputSpec("logits", "%cos"),),
                (Launch("rotary", ("%logit_rows", "@frequencies"), ("%cos", "%sin"), frees=("%sin",)),),
            ),
            "cache": Program(
                (InputSpec("rows", "ui8", ("T", 66)), ids("slots", "T"), ids("read", "K")),
                ("window.0",),
                (OutputSpec("found", "%found"),),
                (
                    Launch("store", ("$window.0", "%rows", "%slots"), attrs={"row_format": "fp8_e8m0", "page": 16}),
                    Launch(
                        "load",
                        ("$window.0", "%read"),
                        ("%found",),
                        {"row_format": "fp8_e8m0", "page": 16, "row_width": 66},
                    ),
                ),
            ),
            "lookup": Program(
                (ids("rows", "T", "2"),),
                (),
                (OutputSpec("values", "%values"),),
                (Launch("lookup", (f"@{ENGRAM}.weight", f"@{ENGRAM}.scale", "%rows"), ("%values",)),),
            ),
            "negate": Program(
                (InputSpec("a", "f32", ("T",)),),
                (),
                (OutputSpec("b", "%c"),),
                (Launch("negate", ("%a",), ("%b",)), Launch("negate", ("%b",), ("%c",), frees=("%b",))),
            ),
            "experts": Program(
                expert_inputs,
                (),
                (OutputSpec("y", "%y"),),
                (Launch("experts", experts, ("%y",), {"limit": 10.0}),),
            ),
            "compiled_experts": Program(
                expert_inputs,
                (),
                (OutputSpec("y", "%y"),),
                (Launch("experts", experts, ("%y",), {"limit": 10.0, "body": "expert"}),),
            ),
        }
    )


def write_plan(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest over the files that lie in the folder, with their digests."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    digests = {name: file_digest(path) for name, path in files.items() if not name.startswith("manifest.")}
    for name, body in encode_manifest(replace(manifest, digests=digests)).items():
        (folder / name).write_bytes(body)


def hand_made_manifest() -> Manifest:
    """The manifest of the hand-made plan, without digests."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    weights = _checkpoint_weights()
    weights["frequencies"] = WeightEntry("f32", (512,), "derived", file="constants.safetensors", tensor="frequencies")
    reference = ("rotary", "store", "load", "lookup", "experts")
    kernels = [KernelEntry(name, "reference", "reference") for name in reference]
    kernels += [KernelEntry(name, "iree", "portable", "kernels/cpu.vmfb", name, "cpu") for name in ("negate", "expert")]
    return Manifest(
        format=FORMAT_VERSION,
        model=config,
        targets=(Target("cpu"),),
        shape_ranges={"T": (1, 64), "B": (1, 4), "P": (1, 12), "R": (1, 64), "N": (1, 1024), "S": (1, 64)},
        passes=(PassRecord("to-launches", "0" * 8),),
        tools={"torch": torch.__version__},
        page_tokens=PAGE_TOKENS,
        state=state_specs(ModelConfig.from_dict(config), PAGE_TOKENS),
        memory={"peak": 0},
        bill={"global_cache_bytes_per_token": 79.5},
        kernels=tuple(kernels),
        weights=weights,
        checkpoint=CheckpointEntry(
            str(CHECKPOINT), {"model.safetensors": header_digest(CHECKPOINT / "model.safetensors")}
        ),
        tokenizer="tokenizer.json",
        programs={"step": "programs/step.mlir"},
        digests={},
    )
