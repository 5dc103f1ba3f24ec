"""The server over a fake engine: in this process without a socket, or behind a real uvicorn on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from tamis.frontend.async_frontend import AsyncFrontend
from tamis.frontend.template import ChatTemplate
from tamis.frontend.tokenizer import Tokenizer
from tamis.server.config import ServerConfig
from tamis.server.http import Http
from tamis.server.listener import bind, url_of
from tamis.server.routes import build_app
from tamis.server.service import Served, Service
from tests.server.fake_engine import FakeEngine

ANSWER = "Blocks of 128 tokens, é included."
MARKERS = ["]~!b[", "]~b]", "[e~[", "]<]image[>[", "]<]minimax[>[", "<mm:think>", "</mm:think>"]
CHAT: dict[str, Any] = {"model": "nano", "messages": [{"role": "user", "content": "Hello!"}]}
COMPLETION: dict[str, Any] = {"model": "nano", "prompt": "Hello", "max_tokens": 4}


def write_tokenizer(folder: Path) -> None:
    """tokenizer.json of one token a byte and the family's markers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(MARKERS)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[e~["}))
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "top_k": 40}))


@dataclass
class Harness:
    """A server and a client of it."""

    engine: FakeEngine
    service: Service
    http: httpx.AsyncClient
    tokenizer: Tokenizer

    async def chat(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=CHAT | fields)

    async def complete(self, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json=COMPLETION | fields)


@functools.cache
def read_folder(folder: Path) -> tuple[Tokenizer, ChatTemplate]:
    """Both are immutable; compiling the template takes longer than most tests."""
    tokenizer = Tokenizer.from_folder(folder)
    return tokenizer, ChatTemplate.from_folder(folder, tokenizer)


def build_service(folder: Path, config: ServerConfig) -> tuple[FakeEngine, Service, Tokenizer]:
    tokenizer, template = read_folder(folder)
    engine = FakeEngine(tokenizer.encode(ANSWER), vocab_size=tokenizer.vocab_size)
    frontend = AsyncFrontend(engine, tokenizer, template, sampling_defaults={"temperature": 0.7, "top_k": 40})
    service = Service(config)
    service.client = engine
    service.served = Served(name="nano", info=engine.info, frontend=frontend, max_request_tokens=4096)
    return engine, service, tokenizer


@contextlib.asynccontextmanager
async def in_process(folder: Path, config: ServerConfig | None = None) -> AsyncIterator[Harness]:
    """The application itself; a response arrives whole."""
    engine, service, tokenizer = build_service(folder, config or ServerConfig())
    # What is raised past the application would be a bug, and shows.
    transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://tamis", timeout=10, verify=False) as http:
        yield Harness(engine, service, http, tokenizer)


@contextlib.asynccontextmanager
async def on_loopback(folder: Path, config: ServerConfig | None = None) -> AsyncIterator[Harness]:
    """A real server on a free port: streams arrive piece by piece, and clients can go away."""
    config = config or ServerConfig(port=0)
    engine, service, tokenizer = build_service(folder, config)
    with contextlib.closing(bind(config.replace(port=0))) as listener:
        server = Http(build_app(service))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with httpx.AsyncClient(base_url=url_of(listener), timeout=10, verify=False) as http:
                yield Harness(engine, service, http, tokenizer)
        finally:
            server.should_exit = True
            server.force_exit = True
            await serving


def assert_error(response: httpx.Response, status: int) -> dict[str, Any]:
    """An OpenAI error object of `status`; returns its inside."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert isinstance(body["error"]["message"], str) and body["error"]["message"]
    return body["error"]


def sse_events(text: str) -> list[Any]:
    """The data of every event; "[DONE]" stays text. Comments are left out."""
    events = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
        else:
            assert not block or block.startswith(":"), f"malformed event: {block!r}"
    return events
