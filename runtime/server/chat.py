"""Chat messages to a prompt, by a template file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dsv41c.errors import RequestError

DEFAULT_TEMPLATE = Path(__file__).with_name("chat.jinja")
EFFORTS = ("none", "low", "medium", "high")


class ChatTemplate:
    """A Jinja template, run in a sandbox: it sees the messages and nothing of this process.

    Args:
        path: the file.
        bos: the text of the token that starts a sequence; empty where there is none.
    Raises:
        RequestError: it cannot be read, or is no template.
    """

    def __init__(self, path: Path, bos: str) -> None:
        environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=False)
        environment.globals = {"raise_exception": _refuse}
        try:
            self._template = environment.from_string(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"chat template {path} cannot be read: {error}") from error
        except jinja2.TemplateError as error:
            raise RequestError(f"chat template {path} is no Jinja template: {error}") from error
        self._path, self._bos = path, bos

    def prompt(self, messages: Sequence[Mapping[str, str]], reasoning_effort: str) -> str:
        """The text that stands for the messages and lets the model answer.

        Args:
            messages: each with role and content.
            reasoning_effort: one of `EFFORTS`.
        Raises:
            RequestError: the template refuses them.
        """
        try:
            return self._template.render(messages=messages, reasoning_effort=reasoning_effort, bos=self._bos)
        except (jinja2.TemplateError, TypeError) as error:
            raise RequestError(f"the chat template refuses these messages: {error}") from error


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
