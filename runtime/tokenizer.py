"""Text to token ids and back, with streaming that never shows half a character."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from dsv41c.errors import PlanError

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The plan's tokenizer.

    Args:
        path: a tokenizer.json.
    Raises:
        PlanError: it is no such file.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for every fault
            raise PlanError(f"{path} is no tokenizer file: {error}") from error

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of token ids; bytes that form no character become the replacement character."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))

    def stream(self) -> TextStream:
        """A decoder for one growing sequence of tokens."""
        return TextStream(self)


class TextStream:
    """Turns tokens into text as they come; a character whose bytes are spread over tokens waits for its last one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Text depends on the tokens before it, so each piece is decoded behind the tokens that were shown last.
        self._shown: list[int] = []
        self._waiting: list[int] = []

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._waiting.append(token)
        text = self._pending()
        if text.endswith(_UNFINISHED):
            return ""
        self._shown, self._waiting = self._waiting, []
        return text

    def finish(self) -> str:
        """What is left when no more tokens come."""
        text = self._pending()
        self._shown, self._waiting = [], []
        return text

    def _pending(self) -> str:
        before = self._tokenizer.decode(self._shown)
        return self._tokenizer.decode(self._shown + self._waiting)[len(before) :]
