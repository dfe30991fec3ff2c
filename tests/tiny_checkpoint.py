"""The first two layers of mini6 as a checkpoint of its own: every kind of op, and compiled in seconds."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).parent / "golden"
_LAYERS = 2
_TEXT = {
    "num_hidden_layers": _LAYERS,
    "compress_ratios": [0, 1, 0, 0],
    "kv_source_layer_ids": [1],
    "index_source_layer_ids": [1],
    "candidate_source_layer_id": 1,
    "dspark_target_layer_ids": [0, 1],
}


def write_tiny_checkpoint(folder: Path) -> Path:
    """Writes the checkpoint with its tokenizer and gives its folder."""
    config = json.loads((GOLDEN / "mini6" / "config.json").read_text())
    config["text_config"] |= _TEXT
    tensors = load_file(GOLDEN / "mini6" / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if _is_kept(name)}
    # Layer 3 is mini6's first source of ratio 1, whose compressor has fewer tensors than that of layer 1.
    kept |= {
        name.replace("layers.3.attn", "layers.1.attn"): t for name, t in tensors.items() if "layers.3.attn" in name
    }
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(kept, folder / "model.safetensors")
    shutil.copy(GOLDEN / "tokenizer.json", folder)
    return folder


def _is_kept(name: str) -> bool:
    parts = name.split(".")
    return parts[0] != "layers" or (int(parts[1]) < _LAYERS and not name.startswith("layers.1.attn."))
