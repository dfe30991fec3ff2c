"""Other layer groupings than the released one, and the parameters of the released one."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dsv41c.models.backbone import Backbone
from dsv41c.models.checkpoint_tensors import TensorSpec, expected_tensors
from dsv41c.models.config import ModelConfig
from dsv41c.models.session import EagerSession
from dsv41c.models.state import draft_state_specs, state_specs
from dsv41c.models.weights import checkpoint_name, empty_backbone, empty_dspark, stacked_names

GOLDEN = Path(__file__).parents[1] / "golden"
DTYPES = {
    torch.float8_e4m3fn: "F8_E4M3",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
}


def grouped(**text: Any) -> ModelConfig:
    """mini6 with another grouping."""
    document = json.loads((GOLDEN / "mini6" / "config.json").read_text())
    document["text_config"] |= text
    return ModelConfig.from_dict(document)


def other_grouping() -> ModelConfig:
    """Eight layers: a ratio 4 source at 1 with two Reindex in a row, then a ratio 1 source at 4, both reused."""
    return grouped(
        num_hidden_layers=8,
        compress_ratios=[0, 4, 4, 4, 1, 1, 1, 1, 0, 0],
        kv_source_layer_ids=[1, 4],
        index_source_layer_ids=[1, 2, 3, 4, 6],
        candidate_source_layer_id=4,
    )


def random_backbone(config: ModelConfig, seed: int) -> Backbone:
    """Random weights of a sane size: codes of any bits, scales near one, norms of one."""
    generator = torch.Generator().manual_seed(seed)
    model = Backbone(config, 16)
    for name, parameter in model.named_parameters():
        parameter.data = random_parameter(name, parameter, generator)
    return model


def random_parameter(name: str, parameter: nn.Parameter, generator: torch.Generator) -> torch.Tensor:
    shape = parameter.shape
    if name.endswith("norm.weight"):
        return torch.ones_like(parameter)
    if parameter.dtype == torch.uint8:
        low, high = (118, 122) if name.endswith("scale") else (0, 256)
        return torch.randint(low, high, shape, generator=generator).to(torch.uint8)
    values = torch.randn(shape, generator=generator)
    return values.to(parameter.dtype) if parameter.dtype == torch.float8_e4m3fn else (0.1 * values).to(parameter.dtype)


def test_modes_of_another_grouping() -> None:
    config = other_grouping()
    modes = ["swa", "full", "reindex", "reindex", "full", "reuse", "reindex", "reuse"]
    assert [config.layer_mode(layer) for layer in range(8)] == modes
    assert [config.kv_source(layer) for layer in range(8)] == [None, 1, 1, 1, 4, 4, 4, 4]
    assert [config.index_source(layer) for layer in range(8)] == [None, 1, 2, 3, 4, 4, 6, 6]
    globals_ = [spec.name for spec in state_specs(config, 16) if spec.pool == "pages"]
    assert globals_ == ["main.1", "index.1", "main.4", "index.4"]
    assert [spec.name for spec in state_specs(config, 16) if spec.kind == "tail"] == ["tail.1"]


def test_another_grouping_runs() -> None:
    """In one chunk and in two; selections are what their layer's mode says."""
    config = other_grouping()
    model = random_backbone(config, seed=1)
    given: dict[int, Any] = {}
    for number, layer in enumerate(model.layers):
        layer.get_submodule("attn").register_forward_hook(
            lambda _module, _args, output, number=number: given.__setitem__(number, output[1])
        )
    tokens = torch.randint(5, config.vocab_size, (41,), generator=torch.Generator().manual_seed(2)).tolist()
    logits = EagerSession(model).forward({0: tokens})[0][0]
    assert torch.isfinite(logits).all()
    assert given[0] is None
    assert given[5] is given[4], "Reuse takes its source's selection as it is"
    assert given[7] is given[6]
    assert len({id(given[layer]) for layer in (1, 2, 3, 4, 6)}) == 5, "Full and Reindex each publish their own"
    assert given[3].candidates is None
    assert given[6].candidates is given[4].candidates
    session = EagerSession(model)
    parts = [session.forward({0: chunk})[0][0] for chunk in (tokens[:18], tokens[18:])]
    agreement = (torch.cat(parts).argmax(-1) == logits.argmax(-1)).float().mean()
    assert agreement >= 0.9


@pytest.mark.parametrize("model", ["mini6", "sched40", "released"])
def test_every_tensor_has_its_parameter(model: str) -> None:
    """Backbone and drafts together name the expected tensors one to one, with their shapes and dtypes."""
    config = ModelConfig.from_json(GOLDEN / model)
    backbone = empty_backbone(config)
    named = {**parameters(backbone), **parameters(empty_dspark(config, backbone))}
    expected = {name: spec for name, spec in expected_tensors(config).items() if not name.endswith("bias_vl")}
    assert named.keys() == expected.keys()
    for name, spec in expected.items():
        assert named[name].shape == spec.shape, name
        assert named[name].dtype in (spec.dtype, "bytes"), name
        assert named[name].dtype != "bytes" or spec.dtype in ("F8_E8M0", "I8"), name


def parameters(module: nn.Module) -> dict[str, TensorSpec]:
    """Parameters by their checkpoint names, expert stacks taken apart; uint8 stands for scales and FP4 codes."""
    named = {}
    for name, parameter in module.named_parameters():
        symbol, shape = checkpoint_name(name), tuple(parameter.shape)
        dtype = DTYPES.get(parameter.dtype, "bytes")
        parts = stacked_names(symbol, shape[0] if "*" in symbol else 1)
        named |= dict.fromkeys(parts, TensorSpec(shape[1:] if "*" in symbol else shape, dtype))
    return named


def test_released_parameters_cost_no_memory() -> None:
    config = ModelConfig.from_json(GOLDEN / "released")
    backbone = empty_backbone(config)
    assert all(parameter.is_meta for parameter in backbone.parameters())
    assert not backbone.rotary.window.is_meta
    assert empty_dspark(config, backbone).rotary is backbone.rotary


def test_draft_state() -> None:
    config = ModelConfig.from_json(GOLDEN / "released")
    specs = draft_state_specs(config)
    assert [spec.name for spec in specs] == ["window.mtp.0", "window.mtp.1", "window.mtp.2"]
    assert [spec.owner for spec in specs] == [40, 41, 42]
    assert {(spec.pool, spec.page, spec.row_width) for spec in specs} == {("rings", 128, 528)}
