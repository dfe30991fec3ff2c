"""A checkpoint of any size with random weights, in the released tensor names and layouts; for benchmarks and tests.

    python bench/generate_checkpoint.py /tmp/checkpoint --size 100m

The same size and seed give the same bytes. Every kind of block is there: window, full, reindex and reuse layers, both
ratios, a candidate source, Engram, the draft layers. The text that such a model writes is meaningless.
"""

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dsv41c.models.checkpoint_tensors import TensorSpec, expected_tensors
from dsv41c.models.config import ModelConfig

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
MAX_POSITIONS = 1024

# What differs from the golden model mini6. Engram's table sizes follow from the tokenizer and stay as they are.
SIZES: dict[str, dict[str, Any]] = {
    "mini6": {},
    "100m": {
        "hidden_size": 512,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "head_dim": 128,
        "qk_rope_head_dim": 32,
        "q_lora_rank": 256,
        "o_lora_rank": 128,
        "n_routed_experts": 14,
        "num_experts_per_tok": 4,
        "sliding_window": 64,
        "compress_ratios": [0, 2, 2, 2, 1, 1, 1, 1, 0, 0],
        "kv_source_layer_ids": [1, 4],
        "index_source_layer_ids": [1, 4, 6],
        "candidate_source_layer_id": 4,
        "index_topk": 64,
        "candidate_topk_blocks": 16,
        "candidate_block_size": 8,
        "dspark_target_layer_ids": [6, 7],
    },
}


def generate(folder: Path, size: str, seed: int = 0, max_positions: int = MAX_POSITIONS) -> int:
    """Writes config.json, model.safetensors and tokenizer.json.

    Args:
        folder: made if it is not there.
        size: a key of `SIZES`.
        seed: of the weights.
        max_positions: the config's max_position_embeddings.
    Returns:
        how many parameters the backbone has (two codes of a byte are two).
    """
    config = json.loads((GOLDEN / "mini6" / "config.json").read_text())
    config["text_config"] |= {"max_position_embeddings": max_positions, **SIZES[size]}
    specs = expected_tensors(ModelConfig.from_dict(config))
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    shutil.copy(GOLDEN / "tokenizer.json", folder / "tokenizer.json")
    save_file({name: _random(name, specs, generator) for name in specs}, folder / "model.safetensors")
    return sum(_parameters(spec) for name, spec in specs.items() if not name.startswith("mtp."))


def lengthened(checkpoint: Path, folder: Path) -> None:
    """A checkpoint's own weights under a config that allows `MAX_POSITIONS` positions."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((checkpoint / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = MAX_POSITIONS
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    shutil.copy(checkpoint / "model.safetensors", folder / "model.safetensors")
    shutil.copy(GOLDEN / "tokenizer.json", folder / "tokenizer.json")


def _parameters(spec: TensorSpec) -> int:
    if spec.dtype == "F8_E8M0":
        return 0
    return math.prod(spec.shape) * (2 if spec.dtype == "I8" else 1)


def _random(name: str, specs: dict[str, TensorSpec], generator: torch.Generator) -> torch.Tensor:
    """Values of about the size that a trained model's have: products keep the variance of what they multiply."""
    spec = specs[name]
    normal = torch.randn(spec.shape, generator=generator)
    if spec.dtype == "F8_E4M3":
        return (normal * 64).to(torch.float8_e4m3fn)
    if spec.dtype == "I8":
        return torch.randint(-128, 128, spec.shape, generator=generator, dtype=torch.int8)
    if spec.dtype == "F8_E8M0":
        return _scales(specs[name.removesuffix("scale") + "weight"], spec, generator)
    if name.endswith(("norm.weight", "q_weight", "k_weight")):
        return (1 + 0.1 * normal).to(torch.bfloat16)
    if len(spec.shape) == 1:
        return 0.5 * normal
    dtype = torch.float32 if spec.dtype == "F32" else torch.bfloat16
    return (normal if name == "embed.weight" else normal / math.sqrt(spec.shape[-1])).to(dtype)


def _scales(weight: TensorSpec, spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    packed = weight.dtype == "I8"
    inputs = weight.shape[-1] * (2 if packed else 1)
    # The codes' own deviation: 64 for fp8 as drawn above; e2m1 codes drawn evenly have 2.9.
    middle = round(127 - math.log2((2.9 if packed else 64) * math.sqrt(inputs)))
    exponents = torch.randint(middle - 1, middle + 2, spec.shape, generator=generator, dtype=torch.uint8)
    return exponents.view(torch.float8_e8m0fnu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=sorted(SIZES), default="100m")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    count = generate(options.folder, options.size, options.seed)
    print(f"{options.folder}: {count / 1e6:.1f}M parameters in the backbone")


if __name__ == "__main__":
    main()
