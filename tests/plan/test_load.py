"""Loading a compiled plan: nothing of the compiler is needed, and whatever does not fit is refused by name."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

import dsv41c
from dsv41c.errors import PlanError, RequestError
from dsv41c.runtime.plan_format import file_digest
from dsv41c.runtime.sampling import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden"

_PROGRAM = """
import importlib.abc, sys

BLOCKED = ("xdsl", "torch_mlir", "iree.compiler", "networkx", "filecheck",
           "dsv41c.ir", "dsv41c.passes", "dsv41c.compiler")

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == one or name.startswith(one + ".") for one in BLOCKED):
            raise ImportError(f"{name} is blocked")
        return None

sys.meta_path.insert(0, Blocker())
import dsv41c
from dsv41c.runtime.sampling import SamplingParams
engine = dsv41c.load(sys.argv[1])
print(*engine.generate(["The ferry"], SamplingParams(max_new_tokens=3, stop_at_eos=False))[0].tokens)
loaded = [name for name in sys.modules if name in BLOCKED]
assert not loaded, loaded
"""


def test_a_compiled_plan_serves_without_the_compiler(mini6_plan: Path) -> None:
    command = [sys.executable, "-c", _PROGRAM, str(mini6_plan)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    params = SamplingParams(max_new_tokens=3, stop_at_eos=False)
    expected = dsv41c.load(mini6_plan).generate(["The ferry"], params)[0].tokens
    assert done.stdout.split() == [str(token) for token in expected]


@pytest.fixture
def plan(mini6_plan: Path, tmp_path: Path) -> Path:
    """A copy of the plan to damage."""
    return Path(shutil.copytree(mini6_plan, tmp_path / "plan"))


def flip(path: Path, at: int) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(bytes(body))


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_flipped_byte_in_any_file_is_named(plan: Path) -> None:
    for name in files_of(plan):
        if name.startswith("manifest."):
            continue
        body = (plan / name).read_bytes()
        flip(plan / name, len(body) // 2)
        with pytest.raises(PlanError, match=f"{name} was changed after it was written"):
            dsv41c.load(plan)
        (plan / name).write_bytes(body)
    dsv41c.load(plan)


@pytest.mark.parametrize("at", [0, 100, -2])
def test_a_flipped_byte_in_the_manifest(plan: Path, at: int) -> None:
    flip(plan / "manifest.json", at)
    with pytest.raises(PlanError, match=r"manifest\.json|plan format"):
        dsv41c.load(plan)


def test_any_file_missing_is_named(plan: Path) -> None:
    for name in files_of(plan):
        (plan / name).rename(plan / "away")
        with pytest.raises(PlanError, match=name.removesuffix(".sha256")):
            dsv41c.load(plan)
        (plan / "away").rename(plan / name)


def rewrite(plan: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Changes the manifest and signs it again."""
    path = plan / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    (plan / "manifest.sha256").write_text(f"{file_digest(path)}  manifest.json\n")


def test_another_format_version(plan: Path) -> None:
    rewrite(plan, lambda manifest: manifest.update(format=99))
    with pytest.raises(PlanError, match="plan format 99, this runtime reads format 2; compile it again"):
        dsv41c.load(plan)


def test_another_cpu(plan: Path) -> None:
    rewrite(plan, lambda manifest: manifest["targets"][0]["features"].append("avx99"))  # type: ignore[index]
    with pytest.raises(PlanError, match=r"CPU features that this machine .* lacks: avx99; compile it on this machine"):
        dsv41c.load(plan)


def test_the_plan_names_the_features_of_its_kernels(mini6_plan: Path) -> None:
    manifest = json.loads((mini6_plan / "manifest.json").read_text())
    (target,) = manifest["targets"]
    assert target["name"] == "cpu"
    assert target["features"], "kernels for this machine use more than the base instruction set"


# --- the checkpoint that the plan maps its weights from --------------------------------------------------------------


@pytest.fixture
def moved(plan: Path, tmp_path: Path) -> Path:
    """A checkpoint of the plan's own, to which its manifest points."""
    checkpoint = Path(shutil.copytree(GOLDEN / "mini6", tmp_path / "mini6"))
    rewrite(plan, lambda manifest: manifest["checkpoint"].update(path=str(checkpoint)))  # type: ignore[attr-defined]
    dsv41c.load(plan)
    return checkpoint


def test_a_moved_checkpoint_can_be_named(plan: Path, moved: Path) -> None:
    elsewhere = moved.rename(moved.with_name("elsewhere"))
    with pytest.raises(PlanError, match=r"mini6/model\.safetensors, which is not there; put the checkpoint back"):
        dsv41c.load(plan)
    engine = dsv41c.load(plan, checkpoint=elsewhere)
    assert engine.generate([[5, 9, 2]], SamplingParams(max_new_tokens=1))[0].tokens


def test_a_truncated_checkpoint(plan: Path, moved: Path) -> None:
    path = moved / "model.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(PlanError, match=rf"compiled with {path.stat().st_size + 1} bytes, found {path.stat().st_size}"):
        dsv41c.load(plan)


def test_a_checkpoint_with_other_tensors(plan: Path, moved: Path) -> None:
    path = moved / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"embed.weight"', b'"embed.weighs"', 1))
    with pytest.raises(PlanError, match=r"compiled with header sha256 .*found .*; compile again"):
        dsv41c.load(plan)


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "new", "message"),
    [
        ([], 1, "prompt 0 is empty; give at least one token"),
        ([5, 512], 1, r"prompt 0: prompt has id 512 at 1; the vocabulary has ids 0\.\.511"),
        ([-1], 1, "prompt 0: prompt has id -1 at 0"),
        ([5] * 600, 1, r"prompt 0 has 600 tokens and asks for 1 more, 601 together; this plan serves \d+"),
    ],
)
def test_requests_that_no_plan_serves(mini6_plan: Path, prompt: list[int], new: int, message: str) -> None:
    engine = dsv41c.load(mini6_plan)
    with pytest.raises(RequestError, match=message):
        engine.generate([[5, 9], prompt][-1:], SamplingParams(max_new_tokens=new))
    assert engine.caches.used_bytes == 0


def test_the_longest_prompt_fits(mini6_plan: Path) -> None:
    """One token short of the declared range, in chunks; one more is refused, by the limit that the message names."""
    engine = dsv41c.load(mini6_plan, max_sequences=1)
    ids = load_file(GOLDEN / "mini6" / "outputs.safetensors")["p100.ids"].tolist()
    longest = (ids * 100)[: engine.max_tokens - 1]
    assert len(engine.generate([longest], SamplingParams(max_new_tokens=1, stop_at_eos=False))[0].tokens) == 1
    with pytest.raises(RequestError, match=f"this plan serves {engine.max_tokens}"):
        engine.generate([[*longest, 5]], SamplingParams(max_new_tokens=1))
