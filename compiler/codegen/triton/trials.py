"""Random inputs for kernels with what they must give and what they cost at least: for checks and timings on a GPU.

A trial needs a kernel's record in a plan, and no Triton: the machine with the GPU may have another one. Small trials
have a reference in torch; large ones are for timing and have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import torch
from torch import Tensor

from dsv41c.models import mhc_ops, moe_ops, ops, quant
from dsv41c.models.hyper_connections import collapse, expand
from dsv41c.models.layers import rms_norm, rotate
from dsv41c.runtime.plan_format import GpuKernel

__all__ = ["FAMILIES", "Trial", "trials_of"]

Arguments = dict[str, Tensor | int | float | None]
Reference = Callable[[], dict[str, Tensor]]

_BATCHES = (1, 8, 32, 128)
_CONTEXTS = (4 << 10, 64 << 10, 512 << 10)
_PREFILL = 512
_MOST_CACHE_BYTES = 24 << 30
_EPS = 1e-6
_LIMIT = 10.0
_PART_WIDTH = 32  # of the partial sums of an mHC site
_SCALE = 1.5
_FP32 = 1e-6  # exponentials and logarithms of fp32
# One rounding of an fp32 sum to bf16.
_BF16 = 2.0**-8
_EXPERTS = 3e-3  # three products and a rounding between them


@dataclass(frozen=True)
class Trial:
    """One way to launch a kernel.

    Attributes:
        label: its sizes in words.
        arguments: by name, all of the kernel's record. sizes: by name, what only its grid needs.
        outputs: the arguments that it writes.
        bytes, flops: what it moves and computes at least.
        reference: what the outputs must be; None where it is only timed.
        relative: how far each row of an output may be from it in L2, relative to the row; 0 for equal bits.
        redrawn: lists of cache rows, which each of several copies of the arguments has of its own.
        read: what the reference speaks of, made of the arguments behind a launch; None where it is the outputs.
    """

    label: str
    arguments: Arguments
    sizes: dict[str, int]
    outputs: tuple[str, ...]
    bytes: int
    flops: int = 0
    reference: Reference | None = None
    relative: float = 0.0
    redrawn: tuple[str, ...] = ()
    read: Callable[[Arguments], dict[str, Tensor]] | None = None

    def copies(self, count: int, most_bytes: int = 1 << 30) -> list[Arguments]:
        """The arguments several times over: tensors of more bytes are shared, all others are copied."""
        made: list[Arguments] = [self.arguments]
        for _ in range(count - 1):
            own: Arguments = {}
            for name, one in self.arguments.items():
                if name in self.redrawn and isinstance(one, Tensor):
                    own[name] = torch.randint_like(one, int(one.max()) + 1)
                elif isinstance(one, Tensor) and one.nbytes <= most_bytes:
                    own[name] = one.clone()
                else:
                    own[name] = one
            made.append(own)
        return made

    def errors(self) -> dict[str, float]:
        """How far each output is from the reference after the kernel ran: the worst row's, relative in L2.

        Where equal bits are asked for, the share of elements that are not.
        """
        assert self.reference is not None, "a trial for timing has no reference"
        found = {}
        behind = self.arguments if self.read is None else self.read(self.arguments)
        for name, wanted in self.reference().items():
            ours = behind[name]
            assert isinstance(ours, Tensor)
            ours = _like(ours.cpu(), wanted)
            if self.relative == 0:
                found[name] = float((ours != wanted).float().mean())
                continue
            exact = wanted.double().view(-1, wanted.shape[-1])
            difference = (ours.double().reshape(exact.shape) - exact).norm(dim=-1)
            found[name] = float((difference / exact.norm(dim=-1).clamp(min=1e-30)).max())
        return found


def _like(ours: Tensor, wanted: Tensor) -> Tensor:
    """The part of an output that its reference speaks of; parts of a sum are added up."""
    if ours.dim() > wanted.dim():
        ours = ours.sum(0)
    return ours[..., : wanted.shape[-1]]


class _Maker:
    """Makes random tensors on a device."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self.generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
        made = torch.randn(shape, generator=self.generator, device=self.device, dtype=torch.float32)
        return (made * scale).to(dtype)

    def whole(self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Whole numbers from low up to, not with, high."""
        return torch.randint(low, high, shape, generator=self.generator, device=self.device, dtype=dtype)

    def packed(self, *shape: int) -> Tensor:
        """Bytes that are finite in every format, as data and as scales."""
        return self.whole(0x30, 0x40, *shape, dtype=torch.uint8)

    def empty(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=dtype)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)


def trials_of(
    function: str, gpu: GpuKernel, device: str, timing: bool, contexts: tuple[int, ...] = _CONTEXTS
) -> Iterator[Trial]:
    """The trials of a kernel; none where its function has none.

    Args:
        function: its Triton function. gpu: its record.
        device: where the tensors are made. timing: large ones to time instead of small ones to check.
        contexts: tokens of a sequence, for kernels that read caches.
    """
    build = FAMILIES.get(f"{PurePosixPath(str(gpu.source)).stem}.{function}")
    if build is not None:
        yield from build(gpu, _Maker(device, 41), timing, contexts)


def _dtype(gpu: GpuKernel, name: str) -> torch.dtype:
    return {"*fp32": torch.float32, "*bf16": torch.bfloat16, "*i32": torch.int32}[gpu.arguments[name]]


def _moved(*tensors: Tensor | int | float | None) -> int:
    return sum(one.nbytes for one in tensors if isinstance(one, Tensor))


# --- products -----------------------------------------------------------------------------------------------------


def _gemm(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    form, groups, in_parts = str(holes["FORMAT"]), int(holes["GROUPS"]), bool(holes["IN_PARTS"])
    outputs, inputs = (5120 // groups * groups, 5120) if timing else (128 * groups, 256)
    rows_list = (_BATCHES[:3] if int(holes["BLOCK_ROWS"]) == 16 else (128, _PREFILL)) if timing else (13,)
    parts = (8 if timing else 3) if in_parts else 1
    for rows in rows_list:
        x = make.normal(rows, groups * inputs)
        weight, scale, exact = _weight(form, outputs, inputs, make)
        shape = (parts, rows, outputs) if in_parts else (rows, outputs)
        y = make.empty(*shape, dtype=_dtype(gpu, "y_ptr"))
        arguments: Arguments = {"x_ptr": x, "w_ptr": weight, "scale_ptr": scale, "y_ptr": y}
        arguments |= {"n_rows": rows, "n_inputs": inputs, "n_outputs": outputs, "n_parts": parts}

        def reference(x: Tensor = x, exact: Callable[[], Tensor] = exact) -> dict[str, Tensor]:
            wide = x.cpu().double().view(x.shape[0], groups, inputs)
            rows_of = exact().double().view(groups, outputs // groups, inputs)
            return {"y_ptr": torch.einsum("tgi,goi->tgo", wide, rows_of).flatten(1)}

        label = f"{rows} x {groups * inputs} -> {outputs}"
        moved = _moved(x, weight, scale if form != "bf16" else None, y)
        yield Trial(
            label, arguments, {}, ("y_ptr",), moved, 2 * rows * inputs * outputs, None if timing else reference, _BF16
        )


def _gemm_pair(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    form, names = str(gpu.holes["FORMAT"]), ("y_ptr", "other_y_ptr")
    outputs, inputs = ((1280, 512), 5120) if timing else ((96, 40), 256)
    width = int(gpu.holes["BLOCK_OUTPUTS"])
    columns = sum(-(-count // width) * width for count in outputs)
    for rows in (_BATCHES[:3] if int(gpu.holes["BLOCK_ROWS"]) == 16 else (128, _PREFILL)) if timing else (13,):
        x = make.normal(rows, inputs)
        (weight, scale, exact), (other, other_scale, other_exact) = (
            _weight(form, count, inputs, make) for count in outputs
        )
        y, other_y = (make.empty(rows, count, dtype=_dtype(gpu, "y_ptr")) for count in outputs)

        def reference(
            x: Tensor = x, exact: tuple[Callable[[], Tensor], ...] = (exact, other_exact)
        ) -> dict[str, Tensor]:
            return {name: x.cpu().double() @ of().double().T for name, of in zip(names, exact, strict=True)}

        arguments: Arguments = {"x_ptr": x, "w_ptr": weight, "scale_ptr": scale, "y_ptr": y}
        arguments |= {"other_w_ptr": other, "other_scale_ptr": other_scale, "other_y_ptr": other_y, "n_rows": rows}
        arguments |= {"n_inputs": inputs, "n_outputs": outputs[0], "n_other_outputs": outputs[1]}
        moved, flops = _moved(x, weight, scale, other, other_scale, y, other_y), 2 * rows * inputs * sum(outputs)
        label, check = f"{rows} x {inputs} -> {outputs[0]} and {outputs[1]}", None if timing else reference
        yield Trial(label, arguments, {"n_columns": columns}, names, moved, flops, check, _BF16)


def _weight(form: str, outputs: int, inputs: int, make: _Maker) -> tuple[Tensor, Tensor | None, Callable[[], Tensor]]:
    """A weight as the kernel reads it, its scales, and its values."""
    if form == "bf16":
        weight = make.normal(outputs, inputs)
        return weight, None, lambda: weight.cpu()
    if form == "fp8":
        weight = make.normal(outputs, inputs).to(torch.float8_e4m3fn)
        scale = make.whole(118, 124, -(-outputs // 32), inputs // 32, dtype=torch.uint8)
    else:
        weight = make.whole(0, 256, outputs, inputs // 2, dtype=torch.uint8)
        scale = make.whole(118, 124, outputs, inputs // 32, dtype=torch.uint8)
    values = quant.dequantize_weight if form == "fp8" else quant.dequantize_fp4_weight
    return weight.view(torch.uint8), scale, lambda: values(weight.cpu(), scale.cpu())


def _sum_parts(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    parts, values = (8, 32 * 5120) if timing else (3, 7 * 160)
    given = make.normal(parts, values, dtype=torch.float32)
    y = make.empty(values, dtype=_dtype(gpu, "y_ptr"))
    arguments: Arguments = {"parts_ptr": given, "y_ptr": y, "n_values": values, "n_parts": parts}
    yield Trial(
        f"{parts} x {values}",
        arguments,
        {},
        ("y_ptr",),
        _moved(given, y),
        0,
        None if timing else lambda: {"y_ptr": given.cpu().sum(0)},
        _BF16,
    )


# --- rows ---------------------------------------------------------------------------------------------------------


def _norm(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    dim, rows = int(holes["D"]), 4096 if timing else 13
    x, weight = make.normal(rows, dim), make.normal(dim)
    normed, quantized = make.empty(rows, dim), make.empty(rows, dim)
    has_norm = bool(holes["HAS_NORM"])
    arguments: Arguments = {"x_ptr": x, "weight_ptr": weight, "normalized_ptr": normed, "quantized_ptr": quantized}

    def reference() -> dict[str, Tensor]:
        rounded = rms_norm(x.cpu(), weight.cpu(), _EPS) if has_norm else x.cpu()
        found = {"quantized_ptr": quant.fake_quantize(rounded, "fp8_e8m0")}
        return found | ({"normalized_ptr": rounded} if has_norm else {})

    outputs = ("normalized_ptr", "quantized_ptr") if has_norm else ("quantized_ptr",)
    moved = _moved(x, quantized, *((weight, normed) if has_norm else ()))
    label = f"{rows} x {dim}"
    yield Trial(label, {**arguments, "n_rows": rows, "eps": _EPS}, {}, outputs, moved, 0, None if timing else reference)


def _rotate(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    dim, tokens, heads = int(holes["D"]), 512 if timing else 5, 64 if timing else 3
    x, y = make.normal(tokens * heads, dim), make.empty(tokens * heads, dim)
    angle = make.uniform(tokens, int(holes["ROTATED"]) // 2) * 6
    cos, sin = angle.cos(), angle.sin()
    arguments: Arguments = {"x_ptr": x, "cos_ptr": cos, "sin_ptr": sin, "y_ptr": y}

    def reference() -> dict[str, Tensor]:
        back = -sin.cpu() if holes["INVERSE"] else sin.cpu()
        turned = rotate(x.cpu().view(tokens, heads, dim), cos.cpu(), back).flatten(0, 1)
        return {"y_ptr": quant.fake_quantize(turned, "fp4_e8m0") if holes["QUANTIZE"] else turned}

    sizes: Arguments = {"n_rows": tokens * heads, "n_heads": heads}
    label = f"{tokens} x {heads} x {dim}"
    yield Trial(label, arguments | sizes, {}, ("y_ptr",), _moved(x, cos, sin, y), 0, None if timing else reference)


def _store(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    width, rows = int(holes["WIDTH"]), 1024 if timing else 7
    dtype = _dtype(gpu, "rows_ptr")
    given, cache = make.normal(rows, width, dtype=dtype, scale=9.0), make.empty(4 * rows, width, dtype=dtype)
    slots = torch.randperm(4 * rows, generator=torch.Generator().manual_seed(3))[:rows].to(make.device)
    slots[1] = -1

    def reference() -> dict[str, Tensor]:
        wanted, kept = torch.zeros(cache.shape, dtype=dtype), slots.cpu()
        wanted[kept[kept >= 0]] = given.cpu()[kept >= 0]
        return {"cache_ptr": wanted}

    arguments: Arguments = {"rows_ptr": given, "slots_ptr": slots, "cache_ptr": cache, "n_rows": rows}
    moved = 2 * _moved(given) + _moved(slots)
    yield Trial(f"{rows} x {width}", arguments, {}, ("cache_ptr",), moved, 0, None if timing else reference)


# --- mHC ----------------------------------------------------------------------------------------------------------


def _mhc_site(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    dim, split, expands = int(holes["D"]), int(holes["SPLIT"]), bool(holes["EXPAND"])
    for rows in (_BATCHES if split > 1 else (_PREFILL, 4096)) if timing else (5,):
        given = _mhc_inputs(dim, rows, make)
        streams, x = make.empty(rows, 4, dim), make.empty(rows, dim)
        parts = make.empty(split, rows, _PART_WIDTH, dtype=torch.float32)
        names = ("y", "h", "post", "comb", "pre", "fn")
        arguments: Arguments = {f"{name}_ptr": given[name] for name in names}
        arguments |= {"streams_ptr": streams, "x_ptr": x, "parts_ptr": parts, "n_rows": rows}

        def reference(given: dict[str, Tensor] = given) -> dict[str, Tensor]:
            host = {name: one.cpu() for name, one in given.items()}
            made = expand(host["y"], host["h"], host["post"], host["comb"]) if expands else host["h"]
            found = {"x_ptr": collapse(made, host["pre"])}
            return found | ({"streams_ptr": made} if expands else {})

        outputs = ("streams_ptr", "x_ptr") if expands else ("x_ptr",)
        # SPEC 3.7: n + 1 channels read and as many written.
        moved = _moved(given["h"], x, given["fn"], *((given["y"], streams) if expands else ()))
        flops = 2 * 24 * 4 * dim * rows
        yield Trial(f"{rows} rows", arguments, {}, outputs, moved, flops, None if timing else reference)


def _mhc_inputs(dim: int, rows: int, make: _Maker) -> dict[str, Tensor]:
    wide = torch.float32
    return {
        "y": make.normal(rows, dim),
        "h": make.normal(rows, 4, dim, scale=3.0),
        "post": make.uniform(rows, 4) * 2,
        "comb": torch.softmax(make.normal(rows, 4, 4, dtype=wide), -1),
        "pre": make.uniform(rows, 4),
        "fn": make.normal(24, 4 * dim, scale=dim**-0.5, dtype=wide),
        "base": make.normal(24, dtype=wide),
        "scale": torch.tensor([0.7, 1.1, 0.4], device=make.device),
        "weight": make.normal(dim),
    }


def _mhc_leave(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    dim, rows = int(holes["D"]), 512 if timing else 5
    given = _mhc_inputs(dim, rows, make)
    chosen = torch.arange(rows, device=make.device).flip(0)
    out = make.empty(rows, dim)
    names = ("y", "h", "post", "comb", "pre", "weight")
    arguments: Arguments = {f"{name}_ptr": given[name] for name in names}
    arguments |= {"rows_ptr": chosen, "out_ptr": out, "n_rows": rows, "norm_eps": _EPS}

    def reference() -> dict[str, Tensor]:
        rows_of = chosen.cpu() if holes["HAS_ROWS"] else torch.arange(rows)
        y, h, post, comb, pre, weight = (given[name].cpu() for name in names)
        return {"out_ptr": mhc_ops.mhc_leave_definition(y, h, post, comb, pre, weight, rows_of, _EPS)}

    moved = _moved(given["y"], given["h"], out)
    yield Trial(f"{rows} rows", arguments, {}, ("out_ptr",), moved, 0, None if timing else reference)


# --- experts ------------------------------------------------------------------------------------------------------


def _lists(ids: Tensor, count: int) -> dict[str, Tensor]:
    """The rows of each expert, as `route` makes them."""
    flat = ids.flatten()
    order = torch.argsort(flat, stable=True)
    counts = torch.bincount(flat, minlength=count)
    starts = counts.cumsum(0) - counts
    return {
        "starts_ptr": starts.to(torch.int32),
        "counts_ptr": counts.to(torch.int32),
        "order_ptr": order.to(torch.int32),
    }


def _chosen(rows: int, count: int, choices: int, make: _Maker) -> Tensor:
    """Distinct experts for each row."""
    return torch.argsort(make.uniform(rows, count), dim=1)[:, :choices].contiguous()


def _route_experts(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    count, choices = int(gpu.holes["EXPERTS"]), int(gpu.holes["CHOICES"])
    for rows in (1, _PREFILL) if timing else (9,):
        logits, bias = make.normal(rows, count, dtype=torch.float32), make.normal(count, dtype=torch.float32)
        ids, weights = make.whole(0, 1, rows, choices), make.empty(rows, choices, dtype=torch.float32)

        def reference(logits: Tensor = logits, bias: Tensor = bias) -> dict[str, Tensor]:
            found = moe_ops.route_experts_definition(logits.cpu(), bias.cpu(), choices, _SCALE)
            return dict(zip(("ids_ptr", "weights_ptr"), found, strict=True))

        arguments: Arguments = {"logits_ptr": logits, "bias_ptr": bias, "ids_ptr": ids, "weights_ptr": weights}
        arguments |= {"n_rows": rows, "scale": _SCALE}
        moved, check = _moved(*arguments.values()), None if timing else reference
        yield Trial(f"{rows} rows", arguments, {}, ("ids_ptr", "weights_ptr"), moved, 0, check, _FP32)


def _route(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    rows, count, choices = (512, 256, 6) if timing else (9, 8, 2)
    ids = _chosen(rows, count, choices, make)
    wanted = _lists(ids, count)
    arguments: Arguments = {"ids_ptr": ids, **{name: torch.zeros_like(one) for name, one in wanted.items()}}

    def reference() -> dict[str, Tensor]:
        return {name: one.cpu() for name, one in wanted.items()}

    moved = _moved(ids, *wanted.values())
    sizes = {"n_experts": count}
    arguments["n_pairs"] = ids.numel()
    yield Trial(f"{rows} rows, {count} experts", arguments, sizes, tuple(wanted), moved, 0, reference)


def _experts(gpu: GpuKernel, make: _Maker, timing: bool, is_up: bool) -> Iterator[Trial]:
    holes = gpu.holes
    dim, inner = int(holes["D"]), int(holes["INNER"])
    count, choices = (256, 6) if timing else (4, 2)
    for rows in _BATCHES if timing else (9,):
        ids = _chosen(rows, count, choices, make)
        lists = _lists(ids, count)
        used = int(ids.unique().numel())
        width_in, width_out = (dim, inner) if is_up else (inner, dim)
        named = ("1", "3") if is_up else ("2",)
        packed = {f"w{n}_ptr": make.whole(0, 256, count, width_out, width_in // 2, dtype=torch.uint8) for n in named}
        packed |= {
            f"s{n}_ptr": make.whole(119, 123, count, width_out, width_in // 32, dtype=torch.uint8) for n in named
        }
        weights = make.uniform(rows, choices)
        given = make.normal(rows if is_up else rows * choices, width_in)
        result = make.empty(rows * choices, width_out)
        arguments: Arguments = {**lists, **packed}
        if is_up:
            arguments |= {"x_ptr": given, "weights_ptr": weights, "hidden_ptr": result}
            arguments |= {"n_choices": choices, "limit": _LIMIT}
        else:
            arguments |= {"hidden_ptr": given, "y_ptr": result}

        def reference(
            given: Tensor = given, ids: Tensor = ids, packed: dict[str, Tensor] = packed, weights: Tensor = weights
        ) -> dict[str, Tensor]:
            return _expert_rows(given.cpu(), ids.cpu(), {n: one.cpu() for n, one in packed.items()}, weights.cpu())

        moved = used * sum(one[0].nbytes for one in packed.values()) + _moved(given, result)
        flops = 2 * len(named) * rows * choices * width_in * width_out
        outputs = ("hidden_ptr",) if is_up else ("y_ptr",)
        label = f"{rows} rows, {used} of {count} experts"
        check = None if timing else reference
        yield Trial(label, arguments, {"n_experts": count}, outputs, moved, flops, check, _EXPERTS)


def _expert_rows(given: Tensor, ids: Tensor, packed: dict[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """One projection, pair by pair; of the first two with their activation, its weight and its quantization."""
    choices = ids.shape[1]
    made = []
    for pair, expert in enumerate(ids.flatten().tolist()):
        own = [(n, packed[f"w{n}_ptr"][expert], packed[f"s{n}_ptr"][expert]) for n in "123" if f"w{n}_ptr" in packed]
        values = {n: quant.dequantize_fp4_weight(weight, scale).float() for n, weight, scale in own}
        if "2" in values:
            made.append(given[pair].float() @ values["2"].T)
            continue
        x = given[pair // choices].float()
        gate, up = ((x @ values[n].T).bfloat16() for n in "13")
        hidden = ops.swiglu(gate, up, _LIMIT) * weights[pair // choices, pair % choices]
        made.append(quant.fake_quantize(hidden.bfloat16().unsqueeze(0), "fp8_e8m0").squeeze(0).float())
    return {"y_ptr" if "w2_ptr" in packed else "hidden_ptr": torch.stack(made)}


def _experts_up(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    yield from _experts(gpu, make, timing, is_up=True)


def _experts_down(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    yield from _experts(gpu, make, timing, is_up=False)


def _shared_up(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    dim, inner = int(gpu.holes["D"]), int(gpu.holes["INNER"])
    for rows in (_BATCHES[:3] if int(gpu.holes["BLOCK_ROWS"]) == 16 else (128, _PREFILL)) if timing else (13,):
        x, hidden = make.normal(rows, dim), make.empty(rows, inner)
        (w1, s1, exact1), (w3, s3, exact3) = (_weight("fp8", inner, dim, make) for _ in range(2))

        def reference(x: Tensor = x, exact: tuple[Callable[[], Tensor], ...] = (exact1, exact3)) -> dict[str, Tensor]:
            gate, up = ((x.cpu().float() @ values().float().T).bfloat16() for values in exact)
            return {"hidden_ptr": quant.fake_quantize(ops.swiglu(gate, up, _LIMIT).bfloat16(), "fp8_e8m0")}

        arguments: Arguments = {"x_ptr": x, "w1_ptr": w1, "s1_ptr": s1, "w3_ptr": w3, "s3_ptr": s3}
        arguments |= {"hidden_ptr": hidden, "n_rows": rows, "limit": _LIMIT}
        moved, flops = _moved(x, w1, s1, w3, s3, hidden), 4 * rows * dim * inner
        label, check = f"{rows} x {dim} -> {inner}", None if timing else reference
        yield Trial(label, arguments, {}, ("hidden_ptr",), moved, flops, check, _EXPERTS)


# --- caches -------------------------------------------------------------------------------------------------------


def _cache(form: str, channels: int, page: int, stride: int, rows: int, make: _Maker, timing: bool) -> Tensor:
    """A planar cache of so many rows: packed numbers for a check, any finite bytes for a timing."""
    pages = -(-rows // page)
    if timing:
        return make.packed(pages, stride)
    cache = torch.zeros((pages, stride), dtype=torch.uint8)
    values = make.normal(pages * page, channels, dtype=torch.float32).cpu()
    ops.store(cache, quant.quantize(values, form), torch.arange(pages * page), form, page)
    return cache.to(make.device)


def _attend(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    heads, channels, is_split = int(holes["HEADS"]), int(holes["D"]), bool(holes["SPLIT"])
    window, selected = int(holes["WINDOW"]), int(holes["SELECTED"])
    ring, ring_stride = int(holes["WINDOW_PAGE"]), int(holes["WINDOW_STRIDE"])
    page, stride = int(holes["MAIN_PAGE"]), int(holes["MAIN_STRIDE"])
    fresh_width = quant.FORMATS["fp8_e8m0"].row_bytes(channels)
    sizes = [(batch, context) for batch in _BATCHES for context in contexts] if timing else [(3, 2 * selected + page)]
    for batch, context in sizes:
        splits = (max(1, min(8, 256 // batch)) if timing else 2) if is_split else 1
        # Sequences share pages where all of them together would not fit; rows are chosen at random all the same.
        entries = min(batch * context, _MOST_CACHE_BYTES // max(1, stride) * page) if selected else 1
        main = _cache("fp4_e4m3", channels, page, stride, entries, make, timing) if selected else make.packed(1, 16)
        ring_cache = _cache("fp8_e8m0", channels, ring, ring_stride, batch * ring, make, timing)
        index = make.whole(0, batch * ring, batch, window, dtype=torch.int32)
        slots = make.whole(0, max(1, entries), batch, max(1, selected), dtype=torch.int32)
        if not timing:
            index[0, ::3], slots[0, ::5] = -1, -1
        query, sink = make.normal(batch, heads, channels), make.normal(heads, dtype=torch.float32)
        split_shape = (batch, splits, heads)
        out = make.empty(*split_shape, channels, dtype=torch.float32) if is_split else make.empty(*query.shape)
        arguments: Arguments = {
            "query_ptr": query,
            "window_ptr": ring_cache,
            "fresh_ptr": make.packed(1, fresh_width),
            "window_index_ptr": index,
            "main_ptr": main,
            "main_slots_ptr": slots,
            "sink_ptr": sink,
            "out_ptr": out,
            "maximum_ptr": make.empty(*split_shape, dtype=torch.float32),
            "total_ptr": make.empty(*split_shape, dtype=torch.float32),
            "n_rows": batch,
            "n_splits": splits,
        }

        def reference(given: Arguments = arguments) -> dict[str, Tensor]:
            host = {name: one.cpu() for name, one in given.items() if isinstance(one, Tensor)}
            cached = (host["window_ptr"], host["fresh_ptr"], host["window_index_ptr"])
            mains = (host["main_ptr"], host["main_slots_ptr"]) if selected else (None, None)
            scale = float(holes["SCALE"])
            found = ops.sparse_attention(host["query_ptr"], *cached, *mains, host["sink_ptr"], scale, ring, page)
            return {"out_ptr": found}

        moved = _moved(query, out, index) + window * batch * fresh_width
        if selected:
            moved += _moved(slots) + selected * batch * quant.FORMATS["fp4_e4m3"].row_bytes(channels)
        flops = 4 * batch * heads * channels * (window + selected)
        check = None if timing else reference
        label, lists = f"batch {batch}, context {context}", ("window_index_ptr", "main_slots_ptr")
        if is_split:
            outputs = ("out_ptr", "maximum_ptr", "total_ptr")
            yield Trial(label, arguments, {}, outputs, moved, flops, check, _EXPERTS, lists, _combined)
        else:
            yield Trial(label, arguments, {}, ("out_ptr",), moved, flops, check, _EXPERTS, lists)


def _combined(given: Arguments) -> dict[str, Tensor]:
    """What the splits of an attention come to."""
    names = ("out_ptr", "maximum_ptr", "total_ptr", "sink_ptr")
    part, maximum, total, sink = (one.cpu().double() for one in map(given.get, names) if isinstance(one, Tensor))
    return {"out_ptr": _over_splits(part, maximum, total, sink)}


def _over_splits(part: Tensor, maximum: Tensor, total: Tensor, sink: Tensor) -> Tensor:
    """Sums of splits fp64 [rows, splits, heads, channels], with their maxima and totals, to the attention's output."""
    highest = maximum.amax(1)
    weight = (maximum - highest.unsqueeze(1)).exp()
    whole = (total * weight).sum(1) + (sink - highest).exp()
    return (part * weight.unsqueeze(-1)).sum(1) / whole.unsqueeze(-1)


def _combine(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    heads, channels = int(holes["HEADS"]), int(holes["D"])
    for rows in _BATCHES if timing else (3,):
        splits = 8 if timing else 2
        part = make.normal(rows, splits, heads, channels, dtype=torch.float32)
        maximum = make.normal(rows, splits, heads, dtype=torch.float32)
        total = make.uniform(rows, splits, heads) + 0.5
        sink, out = make.normal(heads, dtype=torch.float32), make.empty(rows, heads, channels)

        def reference(
            part: Tensor = part, maximum: Tensor = maximum, total: Tensor = total, sink: Tensor = sink
        ) -> dict[str, Tensor]:
            given = (one.cpu().double() for one in (part, maximum, total, sink))
            return {"out_ptr": _over_splits(*given)}

        arguments: Arguments = {"part_ptr": part, "maximum_ptr": maximum, "total_ptr": total, "sink_ptr": sink}
        arguments |= {"out_ptr": out, "n_rows": rows, "n_splits": splits}
        check = None if timing else reference
        yield Trial(f"{rows} rows", arguments, {}, ("out_ptr",), _moved(part, maximum, total, out), 0, check, _BF16)


def _index_scores(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    heads, channels, ratio = int(holes["HEADS"]), int(holes["D"]), int(holes["RATIO"])
    page, stride, block = int(holes["PAGE"]), int(holes["STRIDE"]), int(holes["BLOCK"])
    pool, publish = bool(holes["POOL"]), bool(holes["PUBLISH"])
    lengths = contexts if timing else (5 * page * ratio // 2,)
    for batch, context in ((batch, context) for batch in ((1, 8, 32) if timing else (3,)) for context in lengths):
        entries = context // ratio
        n_pages = -(-entries // page)
        index = _cache("fp4_e8m0", channels, page, stride, batch * n_pages * page, make, timing)
        pages = torch.arange(batch * n_pages, device=make.device).flip(0).view(batch, n_pages).contiguous()
        blocks = min(512, n_pages * page // block) if pool else -(-n_pages * page // block)
        n_entries = blocks * block if pool else n_pages * page
        candidates = torch.arange(blocks, device=make.device, dtype=torch.int32).expand(batch, blocks).contiguous()
        arguments: Arguments = {
            "query_ptr": make.normal(batch, heads, channels),
            "weights_ptr": make.normal(batch, heads),
            "index_ptr": index,
            "pages_ptr": pages,
            "sequence_ptr": torch.arange(batch, device=make.device),
            "positions_ptr": torch.full((batch,), context - 1, device=make.device),
            "candidates_ptr": candidates,
            "scores_ptr": make.empty(batch, n_entries),
            "blocks_ptr": make.empty(batch, blocks),
        }
        arguments |= {"n_rows": batch, "n_entries": n_entries, "n_blocks": blocks, "n_pages": n_pages}

        def reference(given: Arguments = arguments, entries: int = entries, n: int = n_entries) -> dict[str, Tensor]:
            host = {name: one.cpu() for name, one in given.items() if isinstance(one, Tensor)}
            return {"scores_ptr": _scores(host, entries, n, page, channels)}

        read = min(entries, n_entries) * batch * quant.FORMATS["fp4_e8m0"].row_bytes(channels)
        moved = read + _moved(arguments["query_ptr"], arguments["scores_ptr"])
        moved += _moved(arguments["blocks_ptr"]) if publish else 0
        flops = 2 * batch * heads * channels * min(entries, n_entries)
        check = None if timing else reference
        label = f"batch {batch}, context {context}"
        yield Trial(label, arguments, {}, ("scores_ptr",), moved, flops, check, _BF16)


def _scores(host: dict[str, Tensor], entries: int, n_entries: int, page: int, channels: int) -> Tensor:
    """The scores of each row's own sequence; 0 where the kernel writes nothing, behind the last page's tiles."""
    width = quant.FORMATS["fp4_e8m0"].row_bytes(channels)
    seen = min(entries, n_entries)
    entry = torch.arange(seen)
    rows = []
    for row, numbers in enumerate(host["pages_ptr"]):
        slots = numbers[entry // page] * page + entry % page
        keys = quant.dequantize(ops.load(host["index_ptr"], slots, "fp4_e8m0", page, width), "fp4_e8m0")
        rows.append(ops.index_scores(host["query_ptr"][row : row + 1], host["weights_ptr"][row : row + 1], keys))
    return torch.cat(rows)


def _select(gpu: GpuKernel, make: _Maker, timing: bool, contexts: tuple[int, ...]) -> Iterator[Trial]:
    holes = gpu.holes
    group, span = int(holes["GROUP"]), int(holes["SPAN"])
    if group == 1:
        return  # the levels behind the first, which look like it
    rows, k = (32, 512) if timing else (3, 8)
    for count in (span, 8 * span) if timing else (span - 3 * max(1, group),):
        count = count // max(1, group) * max(1, group)
        spans = -(-count // span)
        scores = make.normal(rows, count)
        groups = count // max(1, group)
        entries = torch.arange(groups, device=make.device, dtype=torch.int32).expand(rows, groups).contiguous()
        best = make.empty(rows, spans * k)
        chosen = make.empty(rows, spans * k, dtype=torch.int32)
        arguments: Arguments = {
            "scores_ptr": scores,
            "entries_ptr": entries,
            "positions_ptr": torch.full((rows,), count - 1, device=make.device),
            "best_ptr": best,
            "list_ptr": chosen,
        }
        arguments |= {"n_rows": rows, "n_scores": count, "n_spans": spans, "k": k, "ratio": 1, "per": 1}

        def reference(scores: Tensor = scores) -> dict[str, Tensor]:
            # Equal scores go to the lower position: a stable order of the negated scores keeps it first.
            order = torch.argsort(-scores.cpu().float(), dim=1, stable=True)[:, :k]
            return {"list_ptr": order.sort(dim=1).values.to(torch.int32)}

        check = None if timing else reference
        label = f"{rows} x {count}, {k} best of a span"
        yield Trial(label, arguments, {}, ("list_ptr",), _moved(scores, best, chosen), 0, check)


Build = Callable[[GpuKernel, _Maker, bool, tuple[int, ...]], Iterator[Trial]]

# By the stem of the source's file and the function in it.
FAMILIES: dict[str, Build] = {
    "activations.norm_rows_kernel": _norm,
    "activations.rotate_rows_kernel": _rotate,
    "cache_rows.store_plain_kernel": _store,
    "experts.experts_down_kernel": _experts_down,
    "experts.experts_up_kernel": _experts_up,
    "experts.route_experts_kernel": _route_experts,
    "experts.route_kernel": _route,
    "gemm.gemm_kernel": _gemm,
    "gemm.gemm_pair_kernel": _gemm_pair,
    "gemm.sum_parts_kernel": _sum_parts,
    "indexer.index_scores_kernel": _index_scores,
    "indexer.select_kernel": _select,
    "mhc.mhc_leave_kernel": _mhc_leave,
    "mhc.mhc_site_kernel": _mhc_site,
    "shared_expert.shared_up_kernel": _shared_up,
    "sparse_attention.attend_kernel": _attend,
    "sparse_attention.combine_kernel": _combine,
}
