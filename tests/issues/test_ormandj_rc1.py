"""Symptom: acceptance of drafts falls from 39.7 % to 13.6 % (ormandj's rc.1).

Cause: the loader silently drops the draft layers' shared-expert tensors, whose names it does not expect.

Why this input: mini6's checkpoint with its draft tensors. Every tensor of the file is a parameter of backbone or
drafts, or on the list of those that are ignored with a reason; one more, or one under another name, is refused.
"""

from pathlib import Path

import pytest
from golden_model import GOLDEN
from safetensors.torch import load_file, save_file
from test_groupings import parameters

from dsv41c.errors import CheckpointError
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.weights import empty_backbone, empty_dspark


def test_every_tensor_is_consumed() -> None:
    checkpoint = Checkpoint.open(GOLDEN / "mini6")
    backbone = empty_backbone(checkpoint.config)
    consumed = {**parameters(backbone), **parameters(empty_dspark(checkpoint.config, backbone))}
    assert set(checkpoint.tensors) - set(consumed) == set()
    assert {"mtp.0.ffn.shared_experts.w1.weight", "mtp.1.ffn.shared_experts.w2.scale"} <= set(consumed)


@pytest.mark.parametrize("name", ["mtp.0.ffn.shared_experts.w1.weight", "mtp.1.ffn.shared_experts.w2.scale"])
def test_a_tensor_under_another_name_is_refused(tmp_path: Path, name: str) -> None:
    tensors = load_file(GOLDEN / "mini6" / "model.safetensors")
    tensors[name.replace("shared_experts", "shared_expert")] = tensors.pop(name)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((GOLDEN / "mini6" / "config.json").read_bytes())
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(tmp_path).verify()
    assert name in str(caught.value)
    assert name.replace("shared_experts", "shared_expert") in str(caught.value)
