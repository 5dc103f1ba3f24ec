from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tamis.errors import ConfigError
from tamis.server.config import ServerConfig
from tamis.server.listener import bind, url_of
from tamis.server.startup import ReadyFile, exposure_warning


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"port": 65536}, ["--port is 65536", "0 to 65535"]),
        ({"max_body_bytes": 0}, ["--max-body-bytes is 0", "at least 1"]),
        ({"max_request_tokens": 0}, ["--max-request-tokens is 0", "at least 1"]),
        ({"drain_timeout_s": -1.0}, ["--drain-timeout-s is -1.0", "0 to 3600"]),
        ({"ping_interval_s": 0.0}, ["--ping-interval-s is 0.0"]),
        ({"log_level": "loud"}, ["--log-level is 'loud'", "debug, info"]),
        ({"api_key": (" ",)}, ["--api-key is empty"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_bad_flag_is_named_with_value_and_limit(fields: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        ServerConfig(**fields)
    for word in words:
        assert word in error.value.sentence()


@pytest.mark.parametrize(
    ("host", "api_key", "warns"),
    [
        ("127.0.0.1", (), False),
        ("localhost", (), False),
        ("::1", (), False),
        ("0.0.0.0", (), True),
        ("0.0.0.0", ("secret",), False),
        ("example.org", (), True),
    ],
)
def test_binding_beyond_loopback_without_a_key_warns(host: str, api_key: tuple[str, ...], warns: bool) -> None:
    assert (exposure_warning(ServerConfig(host=host, api_key=api_key)) is not None) is warns


def test_port_0_takes_a_free_port() -> None:
    with bind(ServerConfig(port=0)) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_taken_port_is_an_error_with_a_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*in use") as error:
            bind(ServerConfig(port=port))
        assert "--port" in error.value.sentence()


def test_an_unknown_host_is_an_error() -> None:
    with pytest.raises(ConfigError, match="host"):
        bind(ServerConfig(host="256.256.256.256", port=0))


def test_ready_file_comes_changes_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    ready_file = ReadyFile(str(path), "http://127.0.0.1:1", 1, "nano")
    ready_file.write(ready=False)
    assert '"ready": false' in path.read_text()
    ready_file.write(ready=True)
    assert '"ready": true' in path.read_text()
    assert list(tmp_path.iterdir()) == [path]
    ready_file.remove()
    assert list(tmp_path.iterdir()) == []
