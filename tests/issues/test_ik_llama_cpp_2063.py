"""Symptom: perplexity 3.21 instead of 2.72 (ik_llama.cpp#2063).

Cause: layers that should reuse their source's top-k compute one of their own.

Why this input: mini6 has all kinds of layers. In the traced program the number of selections is that of the index
sources, and each Reuse layer reads the value of its source; the golden top-k sets hold the numbers to that.
"""

from golden_model import golden, prefill
from test_trace import mini6_program


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


def test_every_selection_is_the_references() -> None:
    record, want = prefill("mini6", "p33").record, golden("mini6").under("p33")
    for layer in golden("mini6").config.index_source_layer_ids:
        expected = want[f"topk.layers.{layer}"].tolist()
        chosen = record.values[f"topk.layers.{layer}"][:, : len(expected[0])].tolist()
        assert chosen == expected, layer
