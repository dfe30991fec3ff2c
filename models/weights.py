"""From module parameters to checkpoint tensors: the few names that differ, and loading."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from dsv41c.models.backbone import Backbone, RotaryTables
from dsv41c.models.checkpoint import Checkpoint
from dsv41c.models.config import ModelConfig
from dsv41c.models.dspark import DSpark
from dsv41c.models.engram_tables import engram_tables, read_tokenizer
from dsv41c.models.state import DEFAULT_PAGE_TOKENS

_SITE = re.compile(r"\.hc_(attn|ffn)\.(fn|base|scale)$")
_STACK = re.compile(r"\.experts\.(w[123]\.)")


def checkpoint_name(parameter: str) -> str:
    """The checkpoint's name for a parameter; `*` stands for the expert number of a stack.

    layers.3.hc_attn.fn             -> layers.3.hc_attn_fn
    layers.3.ffn.experts.w1.weight  -> layers.3.ffn.experts.*.w1.weight
    """
    return _STACK.sub(r".experts.*.\1", _SITE.sub(r".hc_\1_\2", parameter))


def stacked_names(symbol: str, experts: int) -> list[str]:
    """The checkpoint tensors that a symbol names: one, or one an expert."""
    if "*" not in symbol:
        return [symbol]
    return [symbol.replace("*", str(expert)) for expert in range(experts)]


def load_parameters(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Gives every parameter of `module` its tensor, mapped from the checkpoint; only expert stacks are copied.

    Args:
        module: a network whose parameter names follow `checkpoint_name`.
        checkpoint: verified.
    Errors: CheckpointError for a tensor that is not there.
    """
    for name, parameter in list(module.named_parameters()):
        experts = parameter.shape[0] if ".experts.w" in name else 1
        parts = [checkpoint.tensor(part) for part in stacked_names(checkpoint_name(name), experts)]
        _assign(module, name, torch.stack(parts) if ".experts.w" in name else parts[0])


def _assign(module: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(path), leaf, nn.Parameter(tensor, requires_grad=False))


def load_backbone(checkpoint: Checkpoint, tokenizer: str, page_tokens: int = DEFAULT_PAGE_TOKENS) -> Backbone:
    """The eager backbone of a checkpoint.

    Args:
        checkpoint: verified.
        tokenizer: path of its tokenizer.json, needed by Engram.
        page_tokens: tokens a page of the global caches.
    """
    model = empty_backbone(checkpoint.config, page_tokens)
    load_parameters(model, checkpoint)
    if checkpoint.config.engram_layer_ids:
        model.set_engram_tables(engram_tables(checkpoint.config, read_tokenizer(tokenizer)))
    return model


def empty_backbone(config: ModelConfig, page_tokens: int = DEFAULT_PAGE_TOKENS) -> Backbone:
    """The backbone with its parameters on the meta device: costs no memory at any size."""
    with torch.device("meta"):
        model = Backbone(config, page_tokens)
    model.rotary = RotaryTables(config)  # real values: they are constants of the config
    return model


def load_dspark(checkpoint: Checkpoint, backbone: Backbone) -> DSpark:
    """The eager draft network of a checkpoint; it shares the embedding and the head of `backbone`."""
    model = empty_dspark(checkpoint.config, backbone)
    load_parameters(model, checkpoint)
    return model


def empty_dspark(config: ModelConfig, backbone: Backbone) -> DSpark:
    """The draft network with its own parameters on the meta device."""
    with torch.device("meta"):
        return DSpark(config, backbone)
