"""Who answers in `tamis chat`: a model in this process, or a server that speaks the OpenAI API."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Protocol

from tamis.errors import InvalidRequestError, TamisError, UnavailableError

if TYPE_CHECKING:
    from tamis.frontend.llm import LLM

Message = dict[str, str]

CONNECT_TIMEOUT_S = 10.0
# A server that follows the API pings during a long prefill; a longer silence is a broken connection.
READ_TIMEOUT_S = 120.0


class Backend(Protocol):
    """Something that continues a conversation.

    Attributes:
        name: of the model.
        can_be_interrupted: whether an exception may be raised inside `answer` at any point, as Ctrl-C does; else
            its iterator must be closed between two pieces.
    """

    name: str
    can_be_interrupted: bool

    def answer(self, messages: list[Message]) -> Generator[str]:
        """Text of the assistant's next message, piece by piece. Closing the iterator stops it.

        Raises:
            TamisError: the conversation cannot be answered.
        """
        ...


class LocalBackend:
    """A model in this process."""

    # The engine's state would be left between two steps.
    can_be_interrupted = False

    def __init__(self, llm: LLM, sampling: Mapping[str, Any]) -> None:
        from tamis.cli.generate import sampling_params

        self.name = llm.name
        self._llm = llm
        self._params = sampling_params(llm, sampling)

    def answer(self, messages: list[Message]) -> Generator[str]:
        """See `Backend.answer`."""
        ids = self._llm.tokenizer.encode_pieces(self._llm.template.render_pieces(messages))
        with closing(self._llm.stream(ids, self._params)) as deltas:
            for delta in deltas:
                yield delta.text


class ServerBackend:
    """A server's /v1/chat/completions.

    Args:
        url: of the server, with or without /v1.
        api_key: sent as a bearer token.
        sampling: fields of the request; what is not given is the server's default.

    Raises:
        InvalidRequestError: a URL that is none.
        UnavailableError: nobody answers there.
    """

    can_be_interrupted = True

    def __init__(self, url: str, api_key: str | None, sampling: Mapping[str, Any]) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidRequestError(
                f"--url is {url!r}, but must start with http:// or https://.", param="url", hint="http://127.0.0.1:8000"
            )
        self._base = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._api_key = api_key
        self._sampling = {key: list(v) if isinstance(v, tuple) else v for key, v in sampling.items()}
        with self._open("/models", None, CONNECT_TIMEOUT_S) as response:
            models = _parse(response.read(), self._base)
        try:
            self.name: str = models["data"][0]["id"]
        except (KeyError, IndexError, TypeError) as error:
            raise UnavailableError(f"{self._base}/models lists no model.", param="url") from error

    def answer(self, messages: list[Message]) -> Generator[str]:
        """See `Backend.answer`."""
        body = {"model": self.name, "messages": messages, "stream": True, **self._sampling}
        with self._open("/chat/completions", body, READ_TIMEOUT_S) as response:
            for event in _events(response):
                data = _parse(event, self._base)
                if "error" in data:
                    raise _error_of(data, 500)
                for choice in data.get("choices", []):
                    if text := choice.get("delta", {}).get("content"):
                        yield text

    def _open(self, path: str, body: dict[str, Any] | None, timeout_s: float) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "User-Agent": "tamis-chat"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data=data, headers=headers)
        try:
            response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            with error:
                raise _error_of(_parse(error.read(), self._base), error.code) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UnavailableError(
                f"{self._base} cannot be reached: {reason}.", param="url", hint="Is the server running there?"
            ) from error
        return response


def _events(response: http.client.HTTPResponse) -> Generator[bytes]:
    """Data of server-sent events, one line each as the API has them, up to [DONE]."""
    try:
        for line in response:
            if line.startswith(b"data:"):
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                yield data
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"The server broke off its answer: {error}.") from error
    raise UnavailableError("The server ended its answer without [DONE].")


def _parse(data: bytes, base: str) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UnavailableError(f"{base} does not speak the OpenAI API: it says {data[:80]!r}.", param="url")
    return value


def _error_of(body: Mapping[str, Any], status: int) -> TamisError:
    error = body.get("error")
    message = error.get("message") if isinstance(error, Mapping) else None
    kind = InvalidRequestError if status < 500 else UnavailableError
    return kind(str(message or f"The server answered with status {status}."))
