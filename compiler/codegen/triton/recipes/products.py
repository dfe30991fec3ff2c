"""Recipes of products: linears, and the experts with their router."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dsv41c.compiler.codegen.triton.device_builder import Argument, DeviceBuilder, LoweredOp, Recipe, product
from dsv41c.compiler.codegen.triton.families import Kernel
from dsv41c.compiler.codegen.triton.kernels import activations, experts, gemm, shared_expert
from dsv41c.ir.dims import Dim

__all__ = ["RECIPES"]

# Programs of a product with few rows that fill a GPU: they run all at once, so one a multiprocessor is about enough.
_PROGRAMS = 100
# What a program reads of a weight in about the time that a launch takes, by estimate. With fewer programs than
# `_PROGRAMS` and more to read, parts of the inputs and their sum are faster. A program of the released router, 384
# outputs of 5120 inputs in bf16, reads 160 KiB, and none of its other products reads as much.
_PART_BYTES = 256 << 10
_MOST_PARTS = 8
_ALIGNED = 16  # what the sizes that a kernel may count on are divisible by


def _linears(op: LoweredOp, build: DeviceBuilder) -> None:
    x, groups = op.args[0], op.attrs["groups"]
    if op.attrs["quantize"]:
        width = op.size(0, 1)
        rounded = build.scratch(op, "quantized", "bf16", *op.dims(0))
        kernel = activations.norm_rows(f"quantize_fp8_{width}", width, norm=False)
        given = {"x_ptr": x, "weight_ptr": None, "normalized_ptr": None, "quantized_ptr": rounded}
        build.launch(kernel, **given, n_rows=op.dims(0)[0], eps=0.0)
        x = rounded
    rows = op.dims(0)[0]
    weights = [
        _Weight("fp8", op.args[at], op.args[at + 1], op.size(at, 0), op.size(at, 1), groups)
        for at in range(1, len(op.args), 2)
    ]
    products = list(zip(weights, op.results, strict=True))
    while len(products) > 1 and groups == 1:
        pair_of(build, x, rows, products.pop(0), products.pop(0))
    for number, (weight, result) in enumerate(products):
        product_of(build, op, f"parts_{number}", x, rows, weight, result)


def _linear_bf16(op: LoweredOp, build: DeviceBuilder) -> None:
    weight = _Weight("bf16", op.args[1], None, op.size(1, 0), op.size(1, 1))
    result = "fp32" if op.attrs["wide"] else "bf16"
    product_of(build, op, "parts", op.args[0], op.dims(0)[0], weight, op.results[0], result)


@dataclass(frozen=True)
class _Weight:
    """A weight as `gemm` takes it: outputs, and inputs of a group."""

    form: str
    weight: str | None
    scale: str | None
    outputs: int
    inputs: int
    groups: int = 1

    @property
    def group_outputs(self) -> int:
        return self.outputs // self.groups if self.groups > 1 else 0


def product_of(
    build: DeviceBuilder,
    op: LoweredOp,
    role: str,
    x: str | None,
    rows: Dim,
    weight: _Weight,
    result: str,
    element: str = "bf16",
) -> None:
    """One product; with few rows, few outputs and very many inputs in parts of these, which are then added.

    Args:
        role: of the scratch. x: rows of groups * inputs. result: its memory. element: of it, "bf16" or "fp32".
    """
    cut = (weight.form, weight.groups, weight.group_outputs)
    name = f"gemm_{weight.form}{f'_groups_{weight.group_outputs}' if weight.groups > 1 else ''}"
    wide = "_fp32" if element == "fp32" else ""
    given: dict[str, Argument] = {"x_ptr": x, "w_ptr": weight.weight, "scale_ptr": weight.scale}
    given |= {"n_rows": rows, "n_inputs": weight.inputs, "n_outputs": weight.outputs}
    width = _width(weight.outputs) if build.few else 0
    n_parts = _parts(weight, width) if width else 1
    if n_parts == 1:
        kernel = gemm.gemm(f"{name}{wide}_{f'few_{width}' if width else 'tiled'}", *cut, width, element)
        build.launch(_any_outputs(kernel, weight), **given, y_ptr=result, n_parts=1)
        return
    parts = build.scratch(op, role, "f32", n_parts, rows, weight.outputs)
    kernel = gemm.gemm(f"{name}_parts", *cut, width, in_parts=True)
    build.launch(_any_outputs(kernel, weight), **given, y_ptr=parts, n_parts=n_parts)
    adding = _any_outputs(gemm.sum_parts(f"sum_parts{wide}", element), weight)
    build.launch(adding, parts_ptr=parts, y_ptr=result, n_values=product(rows, weight.outputs), n_parts=n_parts)


def pair_of(
    build: DeviceBuilder, x: str | None, rows: Dim, one: tuple[_Weight, str], other: tuple[_Weight, str]
) -> None:
    """Two products of one input in one launch: weights of one format, each with its result in bf16."""
    (first, y), (second, other_y) = one, other
    width = _width(first.outputs + second.outputs) if build.few else 0
    kernel = gemm.gemm_pair(f"gemm_{first.form}_pair_{f'few_{width}' if width else 'tiled'}", first.form, width)
    columns = gemm.pair_columns(kernel, first.outputs, second.outputs)
    given: dict[str, Argument] = {"w_ptr": first.weight, "scale_ptr": first.scale, "y_ptr": y}
    given |= {"other_w_ptr": second.weight, "other_scale_ptr": second.scale, "other_y_ptr": other_y}
    given |= {"n_outputs": first.outputs, "n_other_outputs": second.outputs, "n_columns": columns}
    build.launch(_any_outputs(kernel, first, second), x_ptr=x, **given, n_rows=rows, n_inputs=first.inputs)


def _width(outputs: int) -> int:
    """Outputs of a program with few rows: the most that leave enough programs."""
    return next((width for width in gemm.WIDTHS if -(-outputs // width) >= _PROGRAMS), gemm.WIDTHS[-1])


def _parts(weight: _Weight, width: int) -> int:
    """Parts of the inputs: one where the programs of all outputs fill a GPU, or one program has little to read."""
    read = width * weight.inputs * (2 if weight.form == "bf16" else 1)
    programs = -(-weight.outputs // width)
    return 1 if programs >= _PROGRAMS else min(_MOST_PARTS, -(-read // _PART_BYTES))


def _any_outputs(kernel: Kernel, *weights: _Weight) -> Kernel:
    """A kernel that is not promised numbers of outputs which 16 divides, where a weight has others."""
    if all(weight.outputs % _ALIGNED == 0 for weight in weights):
        return kernel
    multiples = tuple(name for name in kernel.multiples if name == "n_inputs")
    return replace(kernel, name=f"{kernel.name}_any", multiples=multiples)


def _select_experts(op: LoweredOp, build: DeviceBuilder) -> None:
    rows, count, choices = op.dims(0)[0], op.size(0, 1), op.attrs["k"]
    kernel = experts.select_experts(f"select_experts_{count}_{choices}", count, choices)
    build.launch(kernel, scores_ptr=op.args[0], ids_ptr=op.results[0], n_rows=rows, n_experts=count)


def _route_experts(op: LoweredOp, build: DeviceBuilder) -> None:
    rows, count, choices = op.dims(0)[0], op.size(0, 1), op.attrs["k"]
    kernel = experts.route_experts(f"route_experts_{count}_{choices}", count, choices)
    named = dict(zip(("logits_ptr", "bias_ptr", "ids_ptr", "weights_ptr"), (*op.args, *op.results), strict=True))
    build.launch(kernel, **named, n_rows=rows, scale=op.attrs["scale"])


def _moe(op: LoweredOp, build: DeviceBuilder) -> None:
    x, ids, weights, w1, s1, w3, s3, w2, s2, *shared = op.args
    rows, dim = op.dims(0)[0], op.size(0, 1)
    choices, count, inner = op.size(1, 1), op.size(3, 0), op.size(3, 1)
    pairs = product(rows, choices)

    # --- routed experts
    lists = {f"{name}_ptr": build.scratch(op, name, "si32", count) for name in ("starts", "counts")}
    lists["order_ptr"] = build.scratch(op, "order", "si32", pairs)
    hidden = build.scratch(op, "hidden", "bf16", pairs, inner)
    routed = build.scratch(op, "routed", "bf16", pairs, dim)
    build.launch(experts.route(), ids_ptr=ids, **lists, n_pairs=pairs, n_experts=count)
    size = "few" if build.few else "many"
    up = experts.up(f"experts_up_{dim}_{inner}_{size}", dim, inner, build.few)
    given = {"w1_ptr": w1, "s1_ptr": s1, "w3_ptr": w3, "s3_ptr": s3, "hidden_ptr": hidden}
    sizes = {"n_choices": choices, "limit": op.attrs["limit"], "n_experts": count}
    build.launch(up, x_ptr=x, weights_ptr=weights, **lists, **given, **sizes)
    down = experts.down(f"experts_down_{dim}_{inner}_{size}", dim, inner, build.few)
    build.launch(down, hidden_ptr=hidden, **lists, w2_ptr=w2, s2_ptr=s2, y_ptr=routed, n_experts=count)

    # --- the shared expert, and the sum
    own = _shared_expert(op, build, x, shared)
    combine = experts.combine(f"combine_{dim}_{choices}_shared", dim, choices, shared=True)
    build.launch(combine, y_ptr=routed, ids_ptr=ids, shared_ptr=own, total_ptr=op.results[0], n_rows=rows)


def _shared_expert(op: LoweredOp, build: DeviceBuilder, x: str | None, packed: list[str | None]) -> str:
    rows, dim, inner = op.dims(0)[0], op.size(0, 1), op.size(9, 0)
    w1, s1, w3, s3, w2, s2 = packed
    hidden = build.scratch(op, "shared_hidden", "bf16", rows, inner)
    kernel = shared_expert.shared_up(f"shared_up_{dim}_{inner}_{'few' if build.few else 'many'}", dim, inner, build.few)
    given = {"w1_ptr": w1, "s1_ptr": s1, "w3_ptr": w3, "s3_ptr": s3, "hidden_ptr": hidden}
    build.launch(kernel, x_ptr=x, **given, n_rows=rows, limit=op.attrs["limit"])
    own = build.scratch(op, "shared", "bf16", rows, dim)
    product_of(build, op, "shared_parts", hidden, rows, _Weight("fp8", w2, s2, dim, inner), own)
    return own


RECIPES: Mapping[str, Recipe] = {
    "linear_bf16": _linear_bf16,
    "linears": _linears,
    "moe": _moe,
    "route_experts": _route_experts,
    "select_experts": _select_experts,
}
