"""mHC kernels against models/mhc_ops.py, at the released width."""

import torch
from cost_rules import rule
from interpreter import counted, run
from tolerances import FP32_RELATIVE, FP32_SUM, TRITON
from torch import Tensor

from dsv41c.compiler.codegen.triton.families import Tile
from dsv41c.compiler.codegen.triton.kernels import mhc
from dsv41c.models import mhc_ops
from dsv41c.models.hyper_connections import collapse, expand

DIM, TOKENS, SPLIT = 5120, 11, 3
EPS, NORM_EPS, ITERATIONS = 1e-6, 1e-20, 20


def inputs(dim: int = DIM, tokens: int = TOKENS) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "y": normal(tokens, dim).bfloat16(),
        "h": (normal(tokens, 4, dim) * 3).bfloat16(),
        "post": torch.sigmoid(normal(tokens, 4)) * 2,
        "comb": torch.softmax(normal(tokens, 4, 4), -1),
        "pre": torch.sigmoid(normal(tokens, 4)),
        "fn": normal(24, 4 * dim) * dim**-0.5,
        "base": normal(24),
        "scale": torch.tensor([0.7, 1.1, 0.4]),
        "weight": torch.linspace(0.5, 1.5, dim).bfloat16(),
    }


def by_pointer(given: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    return {f"{name}_ptr": given[name] for name in names}


def test_site() -> None:
    given = inputs()
    streams, x = torch.empty(TOKENS, 4, DIM, dtype=torch.bfloat16), torch.empty(TOKENS, DIM, dtype=torch.bfloat16)
    parts = torch.full((SPLIT, TOKENS, mhc.PART_WIDTH), torch.nan)
    kernel = mhc.site("site", DIM, True, SPLIT).with_tiles(Tile({"ROWS": 16, "BLOCK": 1024}))
    results = {"streams_ptr": streams, "x_ptr": x, "parts_ptr": parts}
    with counted() as moved:
        run(kernel, **by_pointer(given, "y", "h", "post", "comb", "pre", "fn"), **results, n_rows=TOKENS)

    normalized, (pre, post) = torch.empty_like(x), (torch.empty(TOKENS, 4) for _ in range(2))
    comb = torch.empty(TOKENS, 4, 4)
    results = {"normalized_ptr": normalized, "pre_ptr": pre, "post_ptr": post, "comb_ptr": comb}
    finish = mhc.finish("finish", DIM, ITERATIONS, SPLIT).with_tiles(Tile({"ROWS": 16}))
    read = {"parts_ptr": parts, "x_ptr": x, **by_pointer(given, "base", "scale", "weight")}
    with counted() as finishing:
        run(finish, **read, **results, n_rows=TOKENS, eps=EPS, mix_eps=NORM_EPS, norm_eps=NORM_EPS)

    expected = mhc_ops.mhc_site_definition(**given, iterations=ITERATIONS, eps=EPS, mix_eps=NORM_EPS, norm_eps=NORM_EPS)
    assert torch.equal(streams, expected[0])
    assert torch.equal(x, collapse(expected[0], given["pre"]))
    assert torch.equal(normalized, expected[1])
    for ours, theirs in zip((pre, post, comb), expected[2:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TRITON["mhc"].relative, atol=0)

    # The bound of SPEC 3.7: read n + 1 channels, write n + 1, and what does not grow with the width.
    programs = SPLIT
    mixes = TOKENS * (4 + 4 + 16) * 4 * programs
    assert moved["loads"] == TOKENS * 5 * DIM * 2 + 24 * 4 * DIM * 4 + mixes
    assert moved["stores"] == TOKENS * 5 * DIM * 2 + TOKENS * 25 * 4 * programs

    # Both kernels are the op; between them lie x and the partial products, and every split reads the mixes.
    sizes = {"iterations": ITERATIONS, "eps": EPS, "mix_eps": NORM_EPS, "norm_eps": NORM_EPS}
    cost = rule("mhc_site", list(given.values()), [streams, normalized, pre, post, comb], **sizes)
    between = x.nbytes + TOKENS * 25 * 4 * programs
    again = TOKENS * (4 + 4 + 16) * 4 * (programs - 1)
    assert moved["served"] + finishing["served"] == cost.read + between + again
    assert moved["stores"] + finishing["stores"] == cost.written + between


def test_enter_leaves_the_streams() -> None:
    """A width that no block divides; the unused pointers are not touched."""
    dim, tokens = 96, 3
    given = inputs(dim, tokens)
    unused = torch.zeros(1, dtype=torch.bfloat16)
    x, parts = torch.empty(tokens, dim, dtype=torch.bfloat16), torch.zeros(1, tokens, mhc.PART_WIDTH)
    kernel = mhc.site("enter", dim, False, 1).with_tiles(Tile({"ROWS": 16, "BLOCK": 64}))
    read = {**by_pointer(given, "h", "post", "comb", "pre", "fn"), "y_ptr": unused}
    run(kernel, **read, streams_ptr=unused, x_ptr=x, parts_ptr=parts, n_rows=tokens)
    assert torch.equal(x, collapse(given["h"], given["pre"]))
    v = given["h"].flatten(1).double()
    torch.testing.assert_close(parts[0, :, :24].double(), v @ given["fn"].double().T, rtol=FP32_SUM, atol=FP32_SUM)
    torch.testing.assert_close(parts[0, :, 24].double(), v.square().sum(1), rtol=FP32_RELATIVE, atol=0)
    assert not unused.any()


def test_leave() -> None:
    given, rows = inputs(), torch.tensor([7, 0, 10])
    out = torch.empty(3, DIM, dtype=torch.bfloat16)
    kernel = mhc.leave("leave", DIM).with_tiles(Tile({"ROWS": 4}))
    read = by_pointer(given, "y", "h", "post", "comb", "pre", "weight")
    run(kernel, **read, rows_ptr=rows, out_ptr=out, n_rows=3, norm_eps=NORM_EPS)
    names = ("y", "h", "post", "comb", "pre", "weight")
    expected = mhc_ops.mhc_leave_definition(*(given[name] for name in names), rows, NORM_EPS)
    assert torch.equal(out, expected)
    streams = expand(given["y"], given["h"], given["post"], given["comb"])
    assert not torch.equal(out, collapse(streams, given["pre"])[rows]), "the norm does something"
