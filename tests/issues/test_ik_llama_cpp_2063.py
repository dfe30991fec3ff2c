"""Symptom: perplexity 3.21 instead of 2.72 (ik_llama.cpp#2063).

Cause: layers that should reuse their source's top-k compute one of their own.

Why this input: mini6 has all kinds of layers. In the traced program the number of selections is that of the index
sources, and each Reuse layer reads the value of its source; the golden top-k sets hold the numbers to that.
"""

from golden_model import golden, prefill
from test_trace import mini6_program

from dsv41c.ir.builder import functions
from dsv41c.ir.effects import module_of_op
from dsv41c.ir.ops.state import SparseAttention
from dsv41c.passes.group_csa2 import GroupCsa2
from dsv41c.passes.manager import PassManager
from dsv41c.passes.pass_base import PassContext


def test_reuse_layers_own_no_selection() -> None:
    config = golden("mini6").config
    modes = {layer: config.layer_mode(layer) for layer in range(config.num_hidden_layers)}
    sources = [layer for layer, mode in modes.items() if mode in ("full", "reindex")]
    assert sources == list(config.index_source_layer_ids)
    assert "reuse" in modes.values()
    names = {name for name, _ in golden("mini6").backbone.named_parameters()}
    for layer, mode in modes.items():
        assert any(name.startswith(f"layers.{layer}.attn.indexer.") for name in names) == (layer in sources), mode
    selections = [op for op in mini6_program().body.block.ops if op.name == "dsv41.index_topk"]
    assert len(selections) == len(sources)


def test_reuse_layers_read_what_their_source_reads() -> None:
    """After group-csa2: the same list, value for value, and as many lists as index sources."""
    config, traced = golden("mini6").config, module_of_op(mini6_program())
    assert traced is not None
    func = functions(PassManager([GroupCsa2()], PassContext(config=config)).run(traced))["step"]
    attentions = [op for op in func.body.block.ops if isinstance(op, SparseAttention)]
    lists = [op.main_slots for op in attentions]
    for layer in range(config.num_hidden_layers):
        source = config.index_source(layer)
        assert lists[layer] is (None if source is None else lists[source]), layer
        assert attentions[layer].mode is not None
        assert attentions[layer].mode.data == config.layer_mode(layer)
    assert len(set(lists) - {None}) == len(config.index_source_layer_ids)


def test_every_selection_is_the_references() -> None:
    record, want = prefill("mini6", "p33").record, golden("mini6").under("p33")
    for layer in golden("mini6").config.index_source_layer_ids:
        expected = want[f"topk.layers.{layer}"].tolist()
        chosen = record.values[f"topk.layers.{layer}"][:, : len(expected[0])].tolist()
        assert chosen == expected, layer
