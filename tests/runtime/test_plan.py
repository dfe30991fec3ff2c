"""Opening a plan: what is refused, in whose name, and that a whole plan passes."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hand_made import CHECKPOINT, hand_made_manifest

from dsv41c.errors import PlanError
from dsv41c.runtime.inspect import describe
from dsv41c.runtime.plan import Plan
from dsv41c.runtime.plan_format import (
    CheckpointEntry,
    CheckpointFile,
    KernelEntry,
    Target,
    launches_from_json,
    manifest_from_json,
    to_json,
)


def flip(path: Path, at: int = -1) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(bytes(body))


def test_round_trip(finished_plan: Path) -> None:
    plan = Plan.load(finished_plan)
    text = json.dumps(plan.to_json())
    value = json.loads(text)
    assert manifest_from_json(value["manifest"]) == plan.manifest
    assert launches_from_json(value["launches"]).programs == plan.programs


def test_missing_folder_and_manifest(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no plan folder"):
        Plan.load(tmp_path / "nothing")
    with pytest.raises(PlanError, match=r"has no manifest\.json"):
        Plan.load(tmp_path)


def test_manifest_is_no_json(plan_folder: Path) -> None:
    (plan_folder / "manifest.json").write_text("{")
    with pytest.raises(PlanError, match=r"manifest\.json is no JSON"):
        Plan.load(plan_folder)


def test_other_format_version_is_named_with_ours(plan_folder: Path, rewrite: Callable[..., None]) -> None:
    rewrite(format=7)
    with pytest.raises(PlanError, match="plan format 7, this runtime reads format 2"):
        Plan.load(plan_folder)


@pytest.mark.parametrize(
    ("column", "word", "message"),
    [
        ("rollback", "undone", "state window.0 has rollback 'undone'; this runtime knows cut, overwritten, rewritten"),
        ("restored", "", "state window.0 has restored ''; this runtime knows cached, replayed, recomputed"),
        ("lifetime", "prefix", "state window.0 lives as long as a prefix and lies in rings; .* keeps it in pages"),
    ],
)
def test_a_state_table_of_other_words_is_refused(
    plan_folder: Path, rewrite: Callable[..., None], column: str, word: str, message: str
) -> None:
    first, *rest = hand_made_manifest().state
    rewrite(state=(replace(first, **{column: word}), *rest))
    with pytest.raises(PlanError, match=message):
        Plan.load(plan_folder)


def test_changed_manifest(plan_folder: Path) -> None:
    path = plan_folder / "manifest.json"
    path.write_text(path.read_text().replace('"page_tokens": 16', '"page_tokens": 32'))
    with pytest.raises(PlanError, match=r"manifest\.json was changed after it was written"):
        Plan.load(plan_folder)
    (plan_folder / "manifest.sha256").unlink()
    with pytest.raises(PlanError, match=r"no manifest\.sha256"):
        Plan.load(plan_folder)


def test_unsupported_cpu_features_are_named(plan_folder: Path, rewrite: Callable[..., None], tmp_path: Path) -> None:
    rewrite(targets=(Target("cpu", ("avx2", "avx512bw")),))
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("flags : fpu avx2\n")
    with pytest.raises(PlanError, match="lacks: avx512bw;"):
        Plan.load(plan_folder, cpuinfo=cpuinfo)
    cpuinfo.write_text("flags : fpu avx2 avx512bw\n")
    Plan.load(plan_folder, cpuinfo=cpuinfo)


def test_other_target(plan_folder: Path, rewrite: Callable[..., None]) -> None:
    rewrite(targets=(Target("sm90"),))
    with pytest.raises(PlanError, match="compiled for sm90, this runtime runs cpu"):
        Plan.load(plan_folder)


@pytest.mark.parametrize(
    "name", ["kernels/cpu.vmfb", "kernels/views.vmfb", "launches.json", "tokenizer.json", "constants.safetensors"]
)
def test_flipped_byte_names_the_file(plan_folder: Path, name: str) -> None:
    flip(plan_folder / name, 100)
    with pytest.raises(PlanError, match=f"{name} was changed after it was written"):
        Plan.load(plan_folder)


def test_missing_file(plan_folder: Path) -> None:
    (plan_folder / "kernels" / "cpu.vmfb").unlink()
    with pytest.raises(PlanError, match=r"kernels/cpu\.vmfb is listed in the manifest but is not in"):
        Plan.load(plan_folder)


def test_file_without_digest(plan_folder: Path, rewrite: Callable[..., None]) -> None:
    (plan_folder / "tokenizer.json").unlink()
    rewrite()
    with pytest.raises(PlanError, match=r"tokenizer\.json, which the tokenizer needs, is not among"):
        Plan.load(plan_folder)


def test_missing_checkpoint_and_moved_checkpoint(plan_folder: Path, rewrite: Callable[..., None]) -> None:
    files = hand_made_manifest().checkpoint.files
    rewrite(checkpoint=CheckpointEntry("/nowhere", files))
    with pytest.raises(PlanError, match=r"/nowhere/model\.safetensors, which is not there"):
        Plan.load(plan_folder)
    assert Plan.load(plan_folder, checkpoint=CHECKPOINT).checkpoint == CHECKPOINT


def test_changed_checkpoint(plan_folder: Path, rewrite: Callable[..., None]) -> None:
    real = hand_made_manifest().checkpoint.files["model.safetensors"]
    rewrite(checkpoint=CheckpointEntry(str(CHECKPOINT), {"model.safetensors": replace(real, bytes=real.bytes + 1)}))
    with pytest.raises(PlanError, match=rf"model\.safetensors: .* {real.bytes + 1} bytes, found {real.bytes}"):
        Plan.load(plan_folder)
    rewrite(checkpoint=CheckpointEntry(str(CHECKPOINT), {"model.safetensors": CheckpointFile(real.bytes, "f" * 64)}))
    with pytest.raises(PlanError, match=rf"header sha256 ffff.*found {real.header_sha256[:16]}"):
        Plan.load(plan_folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"kernel":"rotary"', '"kernel":"spin"', "there is no kernel spin"),
        ('"@frequencies"', '"@rates"', "there is no @rates"),
        ('"%logit_rows"', '"%gone"', "there is no %gone"),
        ('"$window.0"', '"$window.9"', r"there is no \$window.9"),
        ('"value":"%found"', '"value":"%lost"', "output found reads %lost"),
        ('"body":"expert"', '"body":"nobody"', "there is no kernel nobody"),
        ('"body":"expert"', '"unpack_1":"nobody"', "there is no kernel nobody"),
        ('"caches":["window.0"]', '"caches":["window.77"]', "uses cache window.77"),
        ('"launches":[', '"launch":[', "expected one of the fields inputs"),
        ('"results":["%values"]', '"results":"%values"', "expected a list, found '%values'"),
    ],
)
def test_launches_refer_to_what_exists(
    plan_folder: Path, rewrite: Callable[..., None], old: str, new: str, message: str
) -> None:
    path = plan_folder / "launches.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    rewrite()
    with pytest.raises(PlanError, match=message):
        Plan.load(plan_folder)


def test_weight_that_does_not_fit(plan_folder: Path, rewrite: Callable[..., None]) -> None:
    weights = dict(hand_made_manifest().weights)
    name, weight = next(iter(weights.items()))
    weights[name] = replace(weight, parts=weight.parts[:-1])
    rewrite(weights=weights)
    with pytest.raises(PlanError, match="but 7 parts"):
        Plan.load(plan_folder)
    part = weight.parts[0]
    weights[name] = replace(weight, parts=(replace(part, offset=1 << 40), *weight.parts[1:]))
    rewrite(weights=weights)
    with pytest.raises(PlanError, match="does not hold ui8"):
        Plan.load(plan_folder)


def test_unknown_kind_of_kernel(plan_folder: Path, rewrite: Callable[..., None]) -> None:
    rewrite(kernels=(KernelEntry("x", "python", "tuned"),))
    with pytest.raises(PlanError, match="kernel x is of kind python"):
        Plan.load(plan_folder)


def test_fields_are_typed() -> None:
    value = to_json(hand_made_manifest())
    with pytest.raises(PlanError, match=r"manifest\.json\.page_tokens: expected int, found '16'"):
        manifest_from_json({**value, "page_tokens": "16"})
    with pytest.raises(PlanError, match="expected a field state"):
        manifest_from_json({key: one for key, one in value.items() if key != "state"})


def test_inspect(finished_plan: Path) -> None:
    report = describe(Plan.load(finished_plan))
    json.dumps(report)
    assert report["programs"]["cache"]["launches_by_kernel"] == {"load": 1, "store": 1}
    # The bill is the compiler's; it is shown as it stands in the manifest.
    assert report["global_cache_bytes_per_token"] == 79.5
    # Six windows of 16 rows of 64 + 2 bytes, and the tails and the history.
    assert report["ring_bytes_per_sequence"] > 6 * 16 * 66
    assert report["reference_kernels"] == ["experts", "load", "lookup", "rotary", "store"]
    assert report["resident_bytes"]["total"] > 0
