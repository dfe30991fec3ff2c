"""Text and back; a stream never shows half a character."""

from pathlib import Path

import pytest
from hand_made import GOLDEN

from dsv41c.errors import PlanError
from dsv41c.runtime.tokenizer import Tokenizer

_TEXTS = ["The ferry leaves at noon.", "naïve Größe — 東京 🙂🙃", " a  b\n\nc ", "🙂"]


@pytest.mark.parametrize("text", _TEXTS)
def test_streams_whole_characters(text: str) -> None:
    tokenizer = Tokenizer(GOLDEN / "tokenizer.json")
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokens]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)
    assert "".join(pieces) + stream.finish() == text


def test_unfinished_bytes_appear_at_the_end() -> None:
    tokenizer = Tokenizer(GOLDEN / "tokenizer.json")
    tokens = tokenizer.encode("x🙂")[:-1]
    stream = tokenizer.stream()
    assert "".join(stream.push(token) for token in tokens) == "x"
    assert "\N{REPLACEMENT CHARACTER}" in stream.finish()


def test_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(PlanError, match="is no tokenizer file"):
        Tokenizer(tmp_path / "tokenizer.json")
