"""Whole compilations that must fail: bad input is refused before the work begins, and a kill leaves no plan."""

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_checkpoint import write_tiny_checkpoint

from dsv41c.compiler import driver
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint, step_ranges
from dsv41c.errors import CheckpointError, CompileError, ConfigError, Dsv41Error
from dsv41c.models.config import ModelConfig

GOLDEN = Path(__file__).parents[1] / "golden"
PAGE_TOKENS = 16


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_tiny_checkpoint(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails here fails before or after the kernels, which take nearly all of the time."""
    monkeypatch.setattr(driver, "compile_linalg", lambda text, target, cache: b"kernel")


def compile_quickly(checkpoint: Path, output: Path, **options: object) -> Path:
    return compile_checkpoint(checkpoint, output, CompileOptions(page_tokens=PAGE_TOKENS, **options))  # type: ignore[arg-type]


def cut_weights(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-64])


def lose_a_shard(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.rename(checkpoint / "model-00001-of-00002.safetensors")
    weight_map = {"embed.weight": "model-00001-of-00002.safetensors", "head.weight": "model-00002-of-00002.safetensors"}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def swap_a_dtype(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    body = path.read_bytes()
    size = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + size])
    header["embed.weight"]["dtype"] = "F16"
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body[8 + size :])


def change_config(**text: object) -> Callable[[Path], None]:
    def change(checkpoint: Path) -> None:
        path = checkpoint / "config.json"
        document = json.loads(path.read_text())
        document["text_config"] |= text
        path.write_text(json.dumps(document))

    return change


def lose_the_tokenizer(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()


def break_the_tokenizer(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize(
    ("damage", "error", "message"),
    [
        (cut_weights, CheckpointError, r"model\.safetensors"),
        (lose_a_shard, CheckpointError, r"model-00002-of-00002\.safetensors"),
        (swap_a_dtype, CheckpointError, r"embed\.weight.*BF16.*F16"),
        (change_config(index_top_k=4), ConfigError, "index_top_k'; did you mean 'index_topk'"),
        (change_config(kv_source_layer_ids=[0]), ConfigError, "kv_source_layer_ids"),
        (lose_the_tokenizer, CompileError, "there is no tokenizer.json in .*; Engram .*--tokenizer"),
        (break_the_tokenizer, Dsv41Error, r"tokenizer\.json"),
    ],
)
def test_bad_checkpoints(
    checkpoint: Path, tmp_path: Path, damage: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    damage(checkpoint)
    with pytest.raises(error, match=message):
        compile_quickly(checkpoint, tmp_path / "plan")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_tokenizer_that_is_not_there(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no tokenizer at .*nowhere\.json"):
        compile_quickly(checkpoint, tmp_path / "plan", tokenizer=tmp_path / "nowhere.json")


def test_an_unknown_target(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CompileError, match=r"target 'tpu' is unknown; supported are cpu, cuda:sm_75, .*; choose with --target"
    ):
        compile_quickly(checkpoint, tmp_path / "plan", targets=("tpu",))


@pytest.mark.parametrize("page_tokens", [2, 128, 256, 4096])
def test_every_row_of_a_pool_has_a_slot_id(page_tokens: int) -> None:
    """Slot ids are int32; the released model has a source of ratio 1, whose pages have a row a token."""
    config = ModelConfig.from_json(GOLDEN / "released")
    ranges = step_ranges(config, CompileOptions(page_tokens=page_tokens))
    assert ranges.pool_pages == min(1 << 24, (1 << 31) // page_tokens)
    assert ranges.rings * config.sliding_window <= 1 << 31
    assert ranges.pages * page_tokens >= config.max_position_embeddings


@pytest.mark.parametrize(
    ("options", "pool"),
    [
        (CompileOptions(page_tokens=1 << 32), "pages needs at least 1 pages of 4294967296 rows"),
        (CompileOptions(max_sequences=(1 << 24) + 1), "rings needs at least 16777217 pages of 128 rows"),
    ],
)
def test_pools_that_slot_ids_do_not_reach(options: CompileOptions, pool: str) -> None:
    with pytest.raises(CompileError, match=f"pool of {pool}; supported are 2147483648 rows"):
        step_ranges(ModelConfig.from_json(GOLDEN / "released"), options)


def test_full_disk(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the last file, the manifest."""
    real = Path.write_bytes

    def limited(path: Path, data: bytes) -> int:
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", limited)
    with pytest.raises(CompileError, match="the disk is full; nothing was left behind"):
        compile_quickly(checkpoint, tmp_path / "plan")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


# Compiles with a progress that kills the process at its first report of the kind that the first argument names.
_KILLED = """
import os, signal, sys
from dsv41c.compiler import driver
from dsv41c.compiler.driver import CompileOptions, compile_checkpoint

driver.compile_linalg = lambda text, target, cache: b"kernel"

def progress(what, done, total):
    if what.startswith(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

compile_checkpoint(sys.argv[2], sys.argv[3], CompileOptions(page_tokens=16), progress)
"""


@pytest.mark.parametrize("moment", ["trace the model", "compile ", "write the plan"])
def test_a_kill_leaves_no_plan(checkpoint: Path, tmp_path: Path, moment: str) -> None:
    output = tmp_path / "out" / "plan"
    command = [sys.executable, "-c", _KILLED, moment, str(checkpoint), str(output)]
    done = subprocess.run(command, stderr=subprocess.DEVNULL, env=os.environ, timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert not output.exists()
    assert all(path.name.startswith(".dsv41c-plan-") for path in output.parent.iterdir())
