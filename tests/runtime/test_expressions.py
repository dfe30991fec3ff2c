"""Sizes of a plan: what they are worth, and what is refused."""

import pytest

from dsv41c.errors import PlanError
from dsv41c.ir.dims import evaluate
from dsv41c.runtime.expressions import size_value
from dsv41c.runtime.plan_format import (
    DeviceBuffer,
    DeviceLaunch,
    DeviceProgram,
    GpuKernel,
    InputSpec,
    KernelEntry,
    LaunchList,
    OutputSpec,
    _decode,
    launches_from_json,
    to_json,
)

SIZES = {"T": 5, "S": 3}


@pytest.mark.parametrize(
    "size", [7, "T", "4*T", "128*S + T", "T floordiv 4", "T mod 4", "max(T, 8, S)", "T**2 - 3", "-T"]
)
def test_a_size_is_what_the_compiler_says(size: int | str) -> None:
    assert size_value(size, SIZES) == evaluate(size, SIZES)


@pytest.mark.parametrize("size", ["U", "T floordiv 0", "T +", "T / 2", "open('x')", "1.5*T", "T.real"])
def test_other_texts_are_refused(size: str) -> None:
    with pytest.raises(PlanError, match=r"has no value with T = 5, S = 3"):
        size_value(size, SIZES)


def test_records_of_a_device_come_back_from_json() -> None:
    buffers = {"y": DeviceBuffer("bf16", ("T", 64)), "half": DeviceBuffer("bf16", ("T", 32), "%y", "64*T")}
    launch = DeviceLaunch("scale", ("%x", None, "$window.0", "T", 0.5), {"n_rows": "2*T"})
    inputs, outputs = (InputSpec("x", "bf16", ("T", 64)),), (OutputSpec("y", "%half"),)
    program = DeviceProgram(inputs, ("window.0",), outputs, buffers, (launch,), "step", {"T": 1})
    launches = LaunchList({}, {"step": program})
    assert launches_from_json(to_json(launches)) == launches
    gpu = GpuKernel({"x_ptr": "*bf16", "n": "i32"}, (("n", 4), (2, 1)), 4, mma=("HMMA",), tile={"ROWS": 4})
    for entry in (KernelEntry("scale", "triton", "portable", gpu=gpu), KernelEntry("store", "reference", "portable")):
        assert _decode(KernelEntry, to_json(entry), "entry") == entry
