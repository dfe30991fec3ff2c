"""The text of a growing completion, and the strings that end it."""

from __future__ import annotations

from collections.abc import Sequence

from dsv41c.runtime.tokenizer import TextStream


class StopText:
    """Turns tokens into text that may be shown: what could be the beginning of a stop string waits.

    Args:
        stream: the decoder of this sequence.
        stops: strings that end the text and are not part of it; none is empty.

    Attributes:
        stopped: a stop string has come.
    """

    def __init__(self, stream: TextStream, stops: Sequence[str]) -> None:
        self._stream, self._stops = stream, tuple(stops)
        self._waiting = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that this token makes certain."""
        return self._show(self._stream.push(token))

    def finish(self) -> str:
        """What is left when no more tokens come."""
        text = self._show(self._stream.finish())
        rest, self._waiting = self._waiting, ""
        return text if self.stopped else text + rest

    def _show(self, fresh: str) -> str:
        text = self._waiting + fresh
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._waiting = True, ""
            return text[: min(found)]
        kept = len(text) - self._unfinished(text)
        self._waiting = text[kept:]
        return text[:kept]

    def _unfinished(self, text: str) -> int:
        """Length of the longest end of the text that a stop string begins with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
