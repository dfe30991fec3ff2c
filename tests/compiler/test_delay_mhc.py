"""delay-mhc: every site of every model, its values, its bytes against the chain's, and what it refuses."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from test_split_ced import clean, config_of
from torch import Tensor
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from dsv41c.compiler.driver import PROGRAM
from dsv41c.compiler.importer import import_definition
from dsv41c.compiler.trace import trace_definition
from dsv41c.errors import CompileError
from dsv41c.ir.builder import FunctionBuilder, functions, module_of
from dsv41c.ir.cost import cost_of
from dsv41c.ir.interpreter import Interpreter
from dsv41c.ir.ops.mhc import MhcSite
from dsv41c.ir.ops.program import Call
from dsv41c.ir.ops.table import moved_bytes
from dsv41c.ir.shapes import ShapeEvaluator
from dsv41c.ir.text import parse_module, print_module
from dsv41c.ir.types import TensorType
from dsv41c.models.hyper_connections import collapse, expand, predict
from dsv41c.models.layers import rms_norm
from dsv41c.passes.delay_mhc import MEANING, DelayMhc
from dsv41c.passes.manager import PassManager, ProbeCase, first_bad_pass
from dsv41c.passes.pass_base import PassContext, PassResult
from dsv41c.passes.split_ced import SplitCed

CASES = Path(__file__).parents[1] / "passes" / "cases"
EPS = (20, 1e-6, 1e-20)


@dataclass(frozen=True)
class Misled(DelayMhc):
    """Expands with the mix that is meant for the collapse."""

    name: ClassVar[str] = "misled"

    def run(self, module: ModuleOp, ctx: PassContext) -> PassResult:
        """Rewrite, and exchange the two operands."""
        result = super().run(module, ctx)
        for op in module.walk():
            if isinstance(op, MhcSite):
                op.operands[2], op.operands[4] = op.operands[4], op.operands[2]
        return result


def case(name: str) -> ModuleOp:
    return parse_module((CASES / f"delay-mhc_{name}.mlir").read_text())


def probe(module: ModuleOp) -> Sequence[ProbeCase]:
    """Three rows of random values for the function of a case; two of them are wanted."""
    generator = torch.Generator().manual_seed(1)
    inputs: dict[str, Tensor] = {}
    for argument in functions(module)["f"].args:
        assert isinstance(argument.type, TensorType)
        if argument.type.dtype == torch.int64:
            inputs[str(argument.name_hint)] = torch.tensor([2, 0])
            continue
        values = torch.randn(argument.type.shape({"T": 3, "R": 2}), generator=generator)
        inputs[str(argument.name_hint)] = values.to(argument.type.dtype)
    return [ProbeCase("f", inputs, lambda name: torch.zeros(()))]


def run(module: ModuleOp) -> dict[str, Tensor]:
    (only,) = probe(module)
    return Interpreter(only.weights).run(functions(module)["f"], only.inputs)


# --- every site -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mini6", "sched40", "released"])
def test_every_site_of_a_model_becomes_one_op(kind: str) -> None:
    config = config_of(kind)
    manager = PassManager([DelayMhc()], PassContext(config=config))
    ops = Counter(op.name for op in manager.run(clean(kind)).walk())
    # The first site has no expand, and neither has one behind Engram.
    entered = len({0, *config.engram_layer_ids})
    sites = 2 * config.num_hidden_layers
    assert manager.reports[0].matches == {PROGRAM: sites + 1}
    assert (ops["dsv41.mhc_site"], ops["dsv41.mhc_enter"], ops["dsv41.mhc_leave"]) == (sites - entered, entered, 1)
    assert ops["dsv41.sinkhorn"] == 0


def test_a_site_that_the_split_cuts_stays_in_two_parts() -> None:
    config = config_of("mini6")
    module = PassManager([SplitCed(), DelayMhc()], PassContext(config=config)).run(clean("mini6"))
    found = {
        name: Counter(op.name for op in func.walk() if op.name in ("dsv41.mhc_leave", "dsv41.sinkhorn"))
        for name, func in functions(module).items()
    }
    # The cut layer's predictor is the tail's, the only one without a collapse.
    assert found == {PROGRAM: {"dsv41.mhc_leave": 1}, "encode": {}, "tail": {"dsv41.sinkhorn": 1, "dsv41.mhc_leave": 1}}


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matches", "matches_ends"])
def test_values_stay_bit_for_bit(name: str) -> None:
    module = PassManager([DelayMhc()], verify_each=probe).run(case(name))
    assert "dsv41.mhc" in print_module(module)


def test_a_broken_copy_is_named() -> None:
    with pytest.raises(CompileError, match=r"pass 'misled' moved %to_2 of 'f' .*bytes\n.*dsv41\.mhc_site"):
        PassManager([Misled()], verify_each=probe).run(case("matches"))
    wanted = run(case("matches"))
    passes = [DelayMhc(), Misled(), DelayMhc()]

    def is_good(module: ModuleOp) -> bool:
        return all(torch.equal(run(module)[name], value) for name, value in wanted.items())

    assert first_bad_pass(passes, case("matches"), is_good) is passes[1]


def test_force_gives_the_model_with_the_delayed_mix() -> None:
    """Against the network's functions, site after site."""
    (given,) = probe(case("matches_forced"))
    x = dict(given.inputs)
    h, norm = x["h"], 1e-20
    first = torch.tensor([[1.0, 0.0]] * 3)
    pre, post, comb = predict(h, x["fn"], x["base"], x["scale"], 2, 1e-6, norm)
    h = expand(rms_norm(collapse(h, first), x["weight"], norm), h, post, comb)
    delayed, post, comb = predict(h, x["fn2"], x["base2"], x["scale2"], 2, 1e-6, norm)
    h = expand(rms_norm(collapse(h, pre), x["weight2"], norm), h, post, comb)
    wanted = rms_norm(collapse(h, delayed), x["last"], norm)[x["rows"]]
    own = case("must_not_own_mix")
    manager = PassManager([DelayMhc(force=True)])
    module = manager.run(own)
    (found,) = run(module).values()
    assert torch.equal(found, wanted)
    assert not torch.equal(found, *run(own).values())
    assert manager.reports[0].matches == {"f": 3, "rewired": 3}
    assert MEANING in functions(module)["f"].attributes
    assert MEANING in print_module(module)


def test_force_changes_nothing_where_the_mix_is_delayed() -> None:
    module = PassManager([DelayMhc(force=True)], verify_each=probe).run(case("matches"))
    assert MEANING not in print_module(module)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_traced_site_of_another_form_is_named() -> None:
    text = print_module(clean("mini6")).replace("torch.aten.sigmoid %add_38", "torch.aten.tanh %add_38")
    with pytest.raises(
        CompileError, match=r"12 of the 13 sites of 'step'.*sinkhorn_1 = .*expected one sigmoid of %add_38"
    ):
        PassManager([DelayMhc()], PassContext(config=config_of("mini6"))).run(parse_module(text))


# --- bytes ------------------------------------------------------------------------------------------------------------

N, D, ROWS = 4, 64, 7


def test_a_site_moves_2n_plus_2_rows_and_its_chain_4n_plus_4() -> None:
    """SPEC 3.7. Aside from weights, which are read once for all rows, and from mixes, 3 n + n^2 numbers a row."""
    assert _streamed(_chain()) == 4 * N + 4
    fused = PassManager([DelayMhc()]).run(case("matches"))
    assert _streamed(functions(fused)["f"], n=2, d=32) == 2 * 2 + 2
    site = functions(module_of([_site()]))["site"]
    assert _streamed(site) == 2 * N + 2


def test_the_last_site_reads_the_wanted_rows_only() -> None:
    func = functions(PassManager([DelayMhc()]).run(case("matches_ends")))["f"]
    (leave,) = [cost for op, cost in cost_of(func, {"T": 100, "R": 1}).ops if op.name == "dsv41.mhc_leave"]
    # One row of y and two streams, three rows of mixes; the norm's weight and the row's number.
    assert leave.read == 2 * 32 * (1 + 2) + 4 * (2 + 4 + 2) + 2 * 32 + 8
    assert leave.written == 2 * 32


def _streamed(func: FuncOp, n: int = N, d: int = D) -> float:
    """What the ops of a function move for each row, in units of d bf16 values, without what is small."""
    sizes = {"T": ROWS}
    evaluator, total = ShapeEvaluator(sizes), 0
    for op, cost in cost_of(func, sizes).ops:
        if not isinstance(op, Call | MhcSite):
            continue
        # Streams and rows of activations are bf16 with a row a token; mixes are fp32 and weights have no rows.
        small = [value for value in (*op.operands, *op.results) if not _is_streamed(value)]
        total += cost.read + cost.written - sum(moved_bytes([evaluator.value(value)]) for value in small)
    return total / (2 * d * ROWS)


def _is_streamed(value: SSAValue) -> bool:
    assert isinstance(value.type, TensorType)
    return value.type.element == "bf16" and value.type.dims[0] == "T"


def _types() -> Mapping[str, tuple[tuple[int | str, ...], torch.dtype]]:
    mixes, f32, bf16 = (2 + N) * N, torch.float32, torch.bfloat16
    return {
        "y": (("T", D), bf16),
        "h": (("T", N, D), bf16),
        "post": (("T", N), f32),
        "comb": (("T", N, N), f32),
        "pre": (("T", N), f32),
        "fn": ((mixes, N * D), f32),
        "base": ((mixes,), f32),
        "scale": ((3,), f32),
        "weight": ((D,), bf16),
    }


def _site() -> FuncOp:
    types = {name: TensorType.of(sizes, dtype) for name, (sizes, dtype) in _types().items()}
    b = FunctionBuilder("site", types, {"T": (1, 512)})
    results = [types[name] for name in ("h", "y", "pre", "post", "comb")]
    attributes = {"iterations": 20, "eps": 1e-6, "mix_eps": 1e-20, "norm_eps": 1e-20}
    made = b.dsv41("mhc_site", list(b.args.values()), results, attributes)
    return b.finish({f"result{i}": value for i, value in enumerate(made)})


def _chain() -> FuncOp:
    """The site as the four kernels that the V4 form needs, one for each part."""
    types = _types()
    b = FunctionBuilder("chain", {name: TensorType.of(*type_) for name, type_ in types.items()}, {"T": (1, 512)})

    def part(name: str, function: Callable[..., Any], *arguments: str) -> FuncOp:
        return import_definition(name, trace_definition(function, [types[a] for a in arguments], {"T": (1, 512)}))

    parts = [
        part("expand", expand, "y", "h", "post", "comb"),
        part("predictor", lambda h, fn, base, scale: predict(h, fn, base, scale, *EPS), "h", "fn", "base", "scale"),
        part("collapse", collapse, "h", "pre"),
        part("norm", lambda x, weight: rms_norm(x, weight, 1e-20), "y", "weight"),
    ]
    a = b.args
    (streams,) = b.call(parts[0], [a["y"], a["h"], a["post"], a["comb"]])
    mixes = b.call(parts[1], [streams, a["fn"], a["base"], a["scale"]])
    (collapsed,) = b.call(parts[2], [streams, a["pre"]])
    (x,) = b.call(parts[3], [collapsed, a["weight"]])
    func = b.finish({"streams": streams, "x": x, **{f"mix{i}": value for i, value in enumerate(mixes)}})
    module_of([func, *parts])
    return func
