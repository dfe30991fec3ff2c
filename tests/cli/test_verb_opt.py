"""`dsv41c opt`: text in, text out."""

from pathlib import Path

import pytest

from dsv41c.passes.pipeline import REGISTRY

PROGRAM = """\
builtin.module {
  func.func @step(%x: !dsv41.tensor<[T, 4], f32>) -> !dsv41.tensor<[T, 4], f32> attributes {dsv41.symbols = {T = [1, 8]}, dsv41.outputs = ["y"]} {
    %dead = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4], f32> -> !dsv41.tensor<[T, 4], f32>
    %y = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4], f32> -> !dsv41.tensor<[T, 4], f32>
    func.return %y : !dsv41.tensor<[T, 4], f32>
  }
}
"""  # noqa: E501


def test_stdin_to_stdout(dsv41c) -> None:
    same = dsv41c("opt", "-", stdin=PROGRAM)
    assert same.exit_code == 0, same.stderr
    assert same.stdout.count("torch.aten.mul.Tensor") == 2
    assert dsv41c("opt", "-", stdin=same.stdout).stdout == same.stdout
    cleaned = dsv41c("opt", "-", "-p", "dead-code", stdin=PROGRAM)
    assert "%dead" not in cleaned.stdout
    assert "%y = torch.aten.mul.Tensor" in cleaned.stdout


def test_file_to_file(dsv41c, tmp_path: Path) -> None:
    source, target = tmp_path / "in.mlir", tmp_path / "out.mlir"
    source.write_text(PROGRAM)
    result = dsv41c("opt", source, "-p", "dead-code,common-subexpressions", "-o", target)
    assert (result.exit_code, result.output) == (0, "")
    assert target.read_text() == dsv41c("opt", "-", "-p", "dead-code", stdin=PROGRAM).stdout


def test_print_after_goes_to_stderr(dsv41c) -> None:
    result = dsv41c("opt", "-", "-p", "common-subexpressions,dead-code", "--print-after", stdin=PROGRAM)
    first, second = result.stderr.split("// ----- after ")[1:]
    assert first.startswith("common-subexpressions -----\n")
    assert second == f"dead-code -----\n{result.stdout}"


def test_passes_with_definitions(dsv41c) -> None:
    quantize = PROGRAM.replace("[T, 4], f32", "[T, 32], bf16")
    result = dsv41c("opt", "-", "-p", "outline-regions,to-launches", stdin=quantize)
    assert result.exit_code == 0, result.stderr
    assert "dsv41.launch" in result.stdout


def test_list_passes(dsv41c) -> None:
    text = dsv41c("opt", "--list-passes").stdout
    for name in REGISTRY:
        assert f"│ {name} " in text
    assert "│ Removes ops whose results" in text


def test_no_verify_lets_a_broken_program_through(dsv41c) -> None:
    broken = PROGRAM.replace("-> !dsv41.tensor<[T, 4], f32>\n    %y", "-> !dsv41.tensor<[T, 5], f32>\n    %y")
    refused = dsv41c("opt", "-", stdin=broken)
    assert refused.exit_code == 1
    assert "%dead = torch.aten.mul.Tensor" in refused.stderr
    assert dsv41c("opt", "-", "--no-verify", stdin=broken).exit_code == 0


@pytest.mark.parametrize(
    ("passes", "message"),
    [
        ("fuse-everything", "pass 'fuse-everything' is unknown; there are common-subexpressions, dead-code"),
        ("dead-code{deep=true}", "pass 'dead-code' has no option 'deep'"),
        ("dead-code;", "is not of the form"),
    ],
)
def test_bad_pipelines(passes: str, message: str, dsv41c) -> None:
    result = dsv41c("opt", "-", "-p", passes, stdin=PROGRAM)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_bad_text(dsv41c, tmp_path: Path) -> None:
    result = dsv41c("opt", "-", stdin="nonsense")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: program text does not parse")
    assert result.stderr.count("\n") == 1
    assert dsv41c("opt", tmp_path / "absent.mlir").exit_code == 2
    unwritable = dsv41c("opt", "-", "-o", tmp_path / "no" / "folder", stdin=PROGRAM)
    assert unwritable.exit_code == 1
    assert "cannot be written: No such file or directory" in unwritable.stderr
