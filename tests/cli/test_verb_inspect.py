"""`dsv41c inspect`: one JSON object, tables, refusals."""

import json
import shutil
from pathlib import Path


def test_json(mini6_plan: Path, process) -> None:
    done = process("inspect", mini6_plan, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    step = found["programs"]["step"]
    assert step["inputs"][0] == {"name": "tokens", "dtype": "si64", "shape": ["T"]}
    assert step["launches"] == sum(step["launches_by_kernel"].values())
    kernels = {kernel["name"]: kernel for kernel in found["kernels"]}
    assert found["reference_kernels"] == sorted(name for name, one in kernels.items() if one["kind"] == "reference")
    assert {"experts", "index_topk", "rotary", "store"} <= set(found["reference_kernels"])
    for program, callers in (("step", {"attend", "linears", "moe"}), ("step_one_row", {"experts"})):
        bodies = found["programs"][program]["bodies"]
        assert all(kernels[body]["kind"] == "iree" for body in bodies)
        assert set(bodies.values()) == callers
    for kernel in kernels.values():
        assert kernel["band"] in ("reference", "portable", "tuned")
        assert (kernel["bytes"] > 0) == (kernel["kind"] == "iree")
    assert found["cache_formats"]["main.3"] == "fp4_e4m3"
    assert found["cache_formats"]["window.0"] == "fp8_e8m0"
    assert [spec["name"] for spec in found["state"]] == list(found["cache_formats"])
    resident = found["resident_bytes"]
    assert resident["total"] == sum(size for name, size in resident.items() if name != "total")
    assert found["window_bytes_per_sequence"] == (6 + 2) * 16 * 66
    assert set(found["kernels_per_layer"]["reuse"]) == {"prefill", "decode"}
    assert found["launches_per_step"]["prefill"] == step["launches"]
    assert found["launches_per_step"]["decode"] == found["programs"]["step_one_row"]["launches"]
    for one in found["step_cost"]:
        assert set(one) == {"context", "flops", "flops_bf16_equivalent", "bytes", "minimal_bytes"}
        assert one["bytes"] >= one["minimal_bytes"] > 0
    assert [(one["chunk"], one["context"]) for one in found["transient_peak_bytes"]] == [(1, 192), (192, 192)]
    assert set(found["transient_peak_bytes"][0]) == {"chunk", "context", "bytes", "indexer_bytes"}
    bundle = found["weights"]["layers.0.ffn.experts.*.w1.weight"]
    assert bundle == {"source": "checkpoint", "dtype": "ui8", "shape": [8, 64, 64], "tensors": 8, "bytes": 8 * 64 * 64}


def test_tables(mini6_plan: Path, dsv41c) -> None:
    text = dsv41c("inspect", mini6_plan).stdout
    for title in ("programs", "kernels", "state", "weights", "bytes", "launches", "decode step", "transient"):
        assert f"\n{title} " in text
    lines = text.splitlines()
    (store,) = (line for line in lines if line.startswith("│ store "))
    assert "│ reference │" in store
    assert any("by experts" in line for line in lines)
    said = " ".join(lines[-3:])  # a narrow terminal wraps it
    assert "reference kernels run as torch functions of the runtime" in said
    assert "store" in said


def test_a_flipped_byte_is_named(mini6_plan: Path, dsv41c, tmp_path: Path) -> None:
    plan = tmp_path / "plan"
    shutil.copytree(mini6_plan, plan)
    file = next(path for path in sorted((plan / "kernels").iterdir()) if path.name != "views.vmfb")
    data = bytearray(file.read_bytes())
    data[1000] ^= 1
    file.write_bytes(data)
    result = dsv41c("inspect", plan)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: kernels/{file.name} was changed after it was written")
    assert result.stderr.count("\n") == 1
