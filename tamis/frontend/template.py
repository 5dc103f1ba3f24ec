"""Chat messages to prompt text, with the checkpoint's own jinja template or the built-in one of the family.

Templates run in a sandbox (`frontend/sandbox.py`). Templates sent in requests are not taken.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2

from tamis.errors import CheckpointError, InvalidRequestError
from tamis.frontend.markers import MarkerGuard, Signs
from tamis.frontend.messages import normalize_messages
from tamis.frontend.sandbox import RefusedByTemplate, bounded_range, join_bounded, sandbox
from tamis.frontend.template_variables import free_variables
from tamis.frontend.tokenizer import Tokenizer, read_json

BUILT_IN = "minimax_m3.jinja"

# Variables that the engine sets; a request cannot.
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt"})


class ChatTemplate:
    """One compiled template. Rendering is thread-safe.

    Attributes:
        name: where it came from, for messages and the start-up card.
        variables: names that `template_kwargs` may set.
    """

    def __init__(self, source: str, *, name: str, tokenizer: Tokenizer) -> None:
        self.name = name
        self._guard = MarkerGuard(tokenizer.added_tokens)
        self._named_tokens = tokenizer.named_tokens
        environment = sandbox()
        try:
            free = free_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"The chat template {name} is broken at line {error.lineno}: {error.message}"
            ) from error
        self.variables = free - _OWN_VARIABLES - set(environment.globals) - set(self._named_tokens)

    @classmethod
    def from_folder(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """The folder's chat_template.jinja, else tokenizer_config.json's `chat_template`, else the built-in one.

        Raises:
            CheckpointError: for a template that cannot be read or does not compile.
        """
        path = folder / "chat_template.jinja"
        if path.exists():
            try:
                source = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise CheckpointError(f"The chat template {path} cannot be read: {error}.") from error
            return cls(source, name=str(path), tokenizer=tokenizer)
        config_path = folder / "tokenizer_config.json"
        named = read_json(config_path).get("chat_template")
        if named is None:
            return cls.built_in(tokenizer)
        return cls(_default_of(named, config_path), name=f"{config_path}:chat_template", tokenizer=tokenizer)

    @classmethod
    def built_in(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The MiniMax-M3 format that ships with the package."""
        source = files("tamis.frontend").joinpath("templates", BUILT_IN).read_text(encoding="utf-8")
        return cls(source, name=f"built-in {BUILT_IN}", tokenizer=tokenizer)

    def render(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> str:
        """The prompt as one text; arguments and errors as `render_pieces`."""
        return "".join(self.render_pieces(messages, **kwargs))

    def render_pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[str]:
        """The prompt, cut where a message would make a marker; each piece is to be tokenised by itself.

        Args:
            messages: as `messages.normalize_messages` takes them.
            tools: OpenAI tool definitions; none when None or empty.
            template_kwargs: further variables of the template, those in `variables` only.
            add_generation_prompt: open the model's turn at the end.
            continue_final_message: end inside the last message instead, which is the assistant's.

        Raises:
            InvalidRequestError: what the template or these rules refuse.
            UnsupportedError: content that is not text.
        """
        kwargs = dict(template_kwargs or {})
        self._check_kwargs(kwargs)
        normal = normalize_messages(messages)
        if continue_final_message:
            _check_continuation(normal, add_generation_prompt)
        signs = self._guard.choose_signs([normal, list(tools or []), kwargs])
        protected = [self._guard.protect(message, signs) for message in normal]
        if continue_final_message:
            protected[-1]["content"] = _with_end(protected[-1]["content"], signs)
        variables = {
            **self._named_tokens,
            **kwargs,
            "messages": protected,
            "tools": [self._guard.protect_tool(tool, signs) for tool in tools] if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render(variables)
        if continue_final_message:
            text = _cut_at_end(text, normal[-1]["content"], signs)
        return self._guard.pieces(text, signs)

    def _render(self, variables: dict[str, Any]) -> str:
        try:
            return join_bounded(self._template.generate(variables, range=bounded_range()))
        except RefusedByTemplate as error:
            raise InvalidRequestError(str(error), param="messages") from error
        except Exception as error:  # a template can fail in any way that Python can
            raise InvalidRequestError(
                f"The chat template cannot render these messages: {type(error).__name__}: {error}.",
                param="messages",
                hint=f"The template is {Path(self.name).name}.",
            ) from error

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        for name in kwargs:
            if name not in self.variables:
                near = difflib.get_close_matches(name, self.variables, n=1)
                known = ", ".join(sorted(self.variables)) or "none"
                raise InvalidRequestError(
                    f"chat_template_kwargs names {name!r}, which this model's chat template does not have "
                    f"(it has: {known}).",
                    param=f"chat_template_kwargs.{name}",
                    hint=f"Did you mean {near[0]!r}?" if near else None,
                )


def _default_of(named: Any, path: Path) -> str:
    """The template in tokenizer_config.json: the text, or that of the entry named "default"."""
    if isinstance(named, str):
        return named
    if isinstance(named, list):
        for entry in named:
            if isinstance(entry, dict) and entry.get("name") == "default" and isinstance(entry.get("template"), str):
                return str(entry["template"])
    raise CheckpointError(
        f"chat_template in {path} is neither a text nor a list with a template named 'default'.",
        hint="Correct it, or remove it to use the built-in template.",
    )


def _check_continuation(messages: list[dict[str, Any]], add_generation_prompt: bool) -> None:
    if add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt are both true, but a prompt ends in only one way.",
            param="continue_final_message",
            hint="Set add_generation_prompt to false.",
        )
    last = messages[-1]
    if last["role"] != "assistant" or not last["content"].strip() or last.get("tool_calls"):
        raise InvalidRequestError(
            f"continue_final_message needs an assistant message with text at the end, but the last one is of role "
            f"{last['role']!r}" + (" without text." if last["role"] == "assistant" else "."),
            param="continue_final_message",
        )


def _with_end(content: str, signs: Signs) -> str:
    """The last message's text with the sign of its end, which is set before white space that a template may strip."""
    stripped = content.rstrip()
    return stripped + signs.end + content[len(stripped) :]


def _cut_at_end(prompt: str, content: str, signs: Signs) -> str:
    """The prompt up to the end of the last message's text, with as much of the white space there as it shows."""
    before, sign, after = prompt.rpartition(signs.end)
    if not sign:
        raise InvalidRequestError(
            "continue_final_message: the chat template does not show the end of the last message's text.",
            param="continue_final_message",
        )
    space = content[len(content.rstrip()) :]
    return before.replace(signs.end, "") + (space if after.startswith(space) else "")
