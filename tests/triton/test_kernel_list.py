"""The kernels of every golden config: names, arguments and holes fit their functions, and grids can be computed."""

from collections import Counter
from pathlib import Path

import pytest

from dsv41c.compiler.codegen.triton.families import FAMILIES, Kernel, kernels_of
from dsv41c.models.config import ModelConfig

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("model", ["released", "mini6", "sched40"])
def test_kernels_fit_their_functions(model: str) -> None:
    kernels = kernels_of(ModelConfig.from_json(GOLDEN / model))
    repeated = [name for name, count in Counter(kernel.name for kernel in kernels).items() if count > 1]
    assert not repeated
    assert {kernel.family for kernel in kernels} == set(FAMILIES)
    for kernel in kernels:
        arguments = list(kernel.load().arg_names)
        assert arguments[: len(kernel.arguments)] == list(kernel.arguments), kernel.name
        for tile in kernel.tiles:
            assert sorted(arguments[len(kernel.arguments) :]) == sorted(kernel.filled(tile, True)), kernel.name
            known = dict.fromkeys((*kernel.arguments, *kernel.sizes), 7)
            assert min(kernel.programs(tile, known)) >= 1, kernel.name
        assert set(kernel.multiples) <= set(kernel.arguments), kernel.name
        assert Kernel.from_json(kernel.to_json()) == kernel
