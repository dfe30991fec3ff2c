"""`dsv41c run`: the forms that scripts rely on, streams, and refusals."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dsv41c.errors import PlanError
from dsv41c.runtime import api
from dsv41c.runtime.plan_format import MANIFEST, encode_manifest, manifest_from_json
from dsv41c.runtime.tokenizer import Tokenizer

EXACT = ("--max-new-tokens", "4", "--temperature", "0", "--json")


def test_json_and_logits(mini6_plan: Path, process, tmp_path: Path) -> None:
    file = tmp_path / "logits.safetensors"
    done = process("run", mini6_plan, "--tokens", "5,9,2", *EXACT, "--save-logits", file)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["prompt"] == [5, 9, 2]
    assert len(found["tokens"]) == 4
    assert found["finished"] == "length"
    assert found["text"] == Tokenizer(mini6_plan / "tokenizer.json").decode(found["tokens"])
    assert set(found["seconds"]) == {"load", "prefill", "decode"}
    logits = load_file(file)
    assert {name: (list(t.shape), t.dtype) for name, t in logits.items()} == {
        "prefill": ([3, 512], torch.float32),
        "decode": ([4, 512], torch.float32),
    }
    # The token after position i is chosen from row i: the prompt's last row, then the rows of the new tokens.
    rows = torch.cat([logits["prefill"][-1:], logits["decode"][:-1]])
    assert rows.argmax(-1).tolist() == found["tokens"]


def test_forced_tokens_are_fed_and_the_choices_reported(mini6_plan: Path, dsv41c, tmp_path: Path) -> None:
    file, whole = tmp_path / "logits.safetensors", tmp_path / "whole.safetensors"
    forced = ("--force-tokens", "7,1,30,31", "--save-logits", file)
    found = json.loads(dsv41c("run", mini6_plan, "--tokens", "5,9,2", *EXACT, *forced).stdout)
    assert found["forced"] == [7, 1, 30, 31]
    logits = load_file(file)
    rows = torch.cat([logits["prefill"][-1:], logits["decode"][:-1]])
    assert rows.argmax(-1).tolist() == found["tokens"]
    longer = ("--tokens", "5,9,2,7,1,30,31", "--json", "--max-new-tokens", "0", "--save-logits", whole)
    assert json.loads(dsv41c("run", mini6_plan, *longer).stdout)["tokens"] == []
    torch.testing.assert_close(load_file(whole)["prefill"][3:], logits["decode"], rtol=0, atol=0.05)


def test_a_bounded_prefill_goes_on_as_an_exact_one(mini6_plan: Path, dsv41c) -> None:
    """The first window of a prompt leaves nothing out; behind a longer one the tokens fed are the same."""
    for count in (16, 40):
        args = ("--tokens", ",".join(str(5 + i) for i in range(count)), "--force-tokens", "7,1", "--json")
        exact, bounded = (
            json.loads(dsv41c("run", mini6_plan, *args, "--prefill", way).stdout) for way in ("exact", "bounded")
        )
        assert bounded["forced"] == exact["forced"] == [7, 1]
        assert len(bounded["tokens"]) == 2
        if count == 16:
            assert bounded["tokens"] == exact["tokens"]


def test_as_many_new_tokens_as_are_forced(mini6_plan: Path, dsv41c) -> None:
    found = json.loads(dsv41c("run", mini6_plan, "--tokens", "5", "--force-tokens", "7,1", "--json").stdout)
    assert found["forced"] == [7, 1]


@pytest.mark.parametrize("option", ["", "--no-stop", "--save-logits", "--force-tokens"])
def test_only_a_free_run_stops_at_the_end_token(option: str, mini6_plan: Path, dsv41c, tmp_path: Path) -> None:
    values = {"--save-logits": tmp_path / "logits.safetensors", "--force-tokens": "3"}
    free = json.loads(dsv41c("run", mini6_plan, "--tokens", "5,9,2", *EXACT).stdout)["tokens"]
    # The plan of a model whose end token is the one that it chooses second here.
    plan = _plan_with_end_token(mini6_plan, tmp_path / "plan", free[1])
    options = [part for part in (option, values.get(option)) if part]
    found = json.loads(dsv41c("run", plan, "--tokens", "5,9,2", *EXACT, *options).stdout)
    assert (found["finished"], len(found["tokens"])) == (("length", 4) if option else ("eos", 2))


def _plan_with_end_token(plan: Path, copy: Path, token: int) -> Path:
    shutil.copytree(plan, copy)
    manifest = json.loads((copy / MANIFEST).read_text())
    manifest["model"]["eos_token_id"] = token
    for name, data in encode_manifest(manifest_from_json(manifest)).items():
        (copy / name).write_bytes(data)
    return copy


def test_ids_stream_as_ids(mini6_plan: Path, dsv41c) -> None:
    options = ("run", mini6_plan, "--tokens", "5,9,2", "--max-new-tokens", "3")
    tokens = json.loads(dsv41c(*options, "--json").stdout)["tokens"]
    result = dsv41c(*options)
    assert result.stdout == ",".join(map(str, tokens)) + "\n"
    assert result.stderr.startswith("3 prompt tokens, 3 new (length); load ")


def test_text_streams_as_whole_characters(mini6_plan: Path, dsv41c) -> None:
    options = ("run", mini6_plan, "--prompt", "The cat", "--max-new-tokens", "12")
    found = json.loads(dsv41c(*options, "--json").stdout)
    assert dsv41c(*options).stdout == found["text"] + "\n"
    tokenizer = Tokenizer(mini6_plan / "tokenizer.json")
    assert found["prompt"] == tokenizer.encode("The cat")


def test_a_seed_repeats_a_sample(mini6_plan: Path, dsv41c) -> None:
    def sample(seed: int) -> str:
        sampler = ("--temperature", "1.5", "--top-k", "50", "--top-p", "0.95", "--seed", str(seed))
        return dsv41c("run", mini6_plan, "--tokens", "5,9,2", "--max-new-tokens", "8", *sampler).stdout

    assert sample(3) == sample(3) != sample(4)


def test_a_moved_checkpoint_is_named(mini6_plan: Path, dsv41c, tmp_path: Path) -> None:
    lost = dsv41c("run", mini6_plan, "--tokens", "5", "--checkpoint", tmp_path)
    assert lost.exit_code == 1
    assert f"error: the plan maps its weights from {tmp_path / 'model.safetensors'}, which is not there" in lost.stderr
    golden = Path(__file__).parents[1] / "golden" / "mini6"
    assert dsv41c("run", mini6_plan, "--tokens", "5", "--checkpoint", golden).exit_code == 0


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ((), 2, "--prompt, or as ids with --tokens"),
        (("--tokens", "5", "--prompt", "x"), 2, "not both"),
        (("--tokens", "5,x"), 2, "'5,x' is no list of token ids; write them as 5,9,2"),
        (("--tokens", ""), 1, "error: prompt 0 is empty; give at least one token"),
        (("--prompt", ""), 1, "error: prompt 0 is empty; give at least one token"),
        (("--tokens", "512"), 1, "error: prompt 0: prompt has id 512 at 0; the vocabulary has ids 0..511"),
        (("--tokens", "-1"), 1, "has id -1 at 0"),
        (("--tokens", "5", "--force-tokens", "3,999"), 1, "forced_tokens has id 999 at 1"),
        (("--tokens", "5", "--max-new-tokens", "500"), 1, "this plan serves 192"),
        (("--tokens", "5", "--top-p", "0"), 1, "error: top_p is 0.0"),
        (("--tokens", "5", "--temperature", "-1"), 1, "error: temperature is -1.0"),
        (("--tokens", "5", "--save-logits", "/no/such/folder/f"), 1, "there is no folder /no/such/folder"),
        (("--tokens", "5", "--prefill", "fast"), 2, "'fast' is not one of 'exact', 'bounded'"),
        (
            ("--tokens", "5", "--prefill", "bounded", "--save-logits", "/tmp/f"),
            1,
            "error: prompt 0 asks for the",
        ),
    ],
)
def test_refusals(args: tuple[str, ...], code: int, message: str, mini6_plan: Path, dsv41c) -> None:
    result = dsv41c("run", mini6_plan, *args)
    assert result.exit_code == code
    assert result.stdout == ""
    assert message in result.stderr
    assert code == 2 or result.stderr.count("\n") == 1


@pytest.mark.parametrize("verb", [("run", "--tokens", "5"), ("serve",)], ids=lambda verb: verb[0])
def test_a_gpu_is_chosen_by_its_number(
    verb: tuple[str, ...], mini6_plan: Path, dsv41c, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, device: int, checkpoint: Path | None) -> None:
        raise PlanError(f"GPU {device} for {path.name}")

    monkeypatch.setattr(api, "open_plan", refuse)
    result = dsv41c(verb[0], mini6_plan, *verb[1:], "--gpu", "3")
    assert result.exit_code == 1
    assert result.stderr == f"error: GPU 3 for {mini6_plan.name}\n"


def test_one_process_prefills_and_another_goes_on(mini6_plan: Path, process, dsv41c, tmp_path: Path) -> None:
    """Sampled text, so that the generator's state, and a character in two tokens, go along."""
    state = tmp_path / "state"
    asked = (
        "--prompt",
        "The cat \N{EURO SIGN}",
        "--max-new-tokens",
        "8",
        "--temperature",
        "1",
        "--seed",
        "7",
        "--no-stop",
    )
    whole = dsv41c("run", mini6_plan, *asked, "--json")
    want = json.loads(whole.stdout)
    began = process("run", mini6_plan, *asked, "--export-state", state)
    assert (began.returncode, began.stdout) == (0, ""), began.stderr
    ended = process("run", mini6_plan, "--import-state", state)
    assert ended.returncode == 0, ended.stderr
    assert want["text"].endswith(ended.stdout.rstrip("\n"))
    assert len(ended.stdout) > 2
    found = json.loads(dsv41c("run", mini6_plan, "--import-state", state, "--json").stdout)
    assert {**found, "seconds": None} == {**want, "seconds": None}


def test_states_that_do_not_fit_are_refused(mini6_plan: Path, dsv41c, tmp_path: Path) -> None:
    """Another layout of a cache on the decoding side; a file that is no state; options that say two things."""
    state, other = tmp_path / "state", tmp_path / "plan"
    assert dsv41c("run", mini6_plan, "--tokens", "5,9,2", "--export-state", state).exit_code == 0
    shutil.copytree(mini6_plan, other)
    manifest = manifest_from_json(json.loads((other / MANIFEST).read_text()))
    wider = tuple(replace(spec, page_width=spec.page_width + 256) for spec in manifest.state)
    for name, data in encode_manifest(replace(manifest, state=wider)).items():
        (other / name).write_bytes(data)
    refused = dsv41c("run", other, "--import-state", state)
    assert refused.exit_code == 1
    assert "the sequence's state has other cache formats: window.0 is" in refused.stderr
    assert "in 1056" in refused.stderr
    assert "in 1312" in refused.stderr
    state.write_bytes(state.read_bytes()[:-1])
    assert "was damaged on the way" in dsv41c("run", mini6_plan, "--import-state", state).stderr
    missing = dsv41c("run", mini6_plan, "--import-state", tmp_path / "none")
    assert missing.stderr.startswith("error: --import-state")
    ended = dsv41c("run", mini6_plan, "--tokens", "5", "--max-new-tokens", "1", "--export-state", state)
    assert "a request that has ended has no state to hand over" in ended.stderr
    for options in (
        ("--tokens", "5", "--import-state", state),
        ("--tokens", "5", "--export-state", state, "--save-logits", "x"),
    ):
        assert dsv41c("run", mini6_plan, *options).exit_code == 2
