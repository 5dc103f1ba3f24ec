"""Flags follow the dataclasses; vLLM's other flags change nothing or are refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import tamis.cli.serve
from tamis.cli.main import main
from tamis.cli.vllm_flags import NOT_HONOURED, SHORT, WITHOUT_EFFECT, translate
from tamis.config import EngineConfig
from tamis.errors import ConfigError
from tamis.frontend.engine_args import build_config
from tamis.server.config import ServerConfig


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Values with which `tamis serve` was called."""
    calls: list[tuple[dict[str, Any], dict[str, Any]]] = []
    monkeypatch.setattr(tamis.cli.serve, "serve", lambda engine, server: calls.append((engine, server)) or 0)
    return calls


# One value other than the default for each field, as it is typed.
TYPED = {
    "model": ("/m", "/m"),
    "tokenizer": ("/t", "/t"),
    "served_model_name": ("name", "name"),
    "load_format": ("dummy", "dummy"),
    "hf_overrides": ('{"num_hidden_layers": 2}', {"num_hidden_layers": 2}),
    "dtype": ("bfloat16", "bfloat16"),
    "device": ("cpu", "cpu"),
    "threads": ("3", 3),
    "seed": ("-5", -5),
    "max_model_len": ("4096", 4096),
    "block_size": ("128", 128),
    "kv_cache_dtype": ("nvfp4", "nvfp4"),
    "attention_config": ('{"indexer_kv_dtype": "nvfp4"}', {"indexer_kv_dtype": "nvfp4"}),
    "num_blocks_override": ("7", 7),
    "kv_cache_memory_bytes": ("1000000", 1000000),
    "gpu_memory_utilization": ("0.5", 0.5),
    "max_num_seqs": ("8", 8),
    "max_num_batched_tokens": ("512", 512),
    "max_queued_requests": ("9", 9),
    "scheduling_policy": ("priority", "priority"),
}


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(EngineConfig) if f.name in TYPED])
def test_every_engine_field_is_a_flag(served: list, name: str) -> None:
    typed, value = TYPED[name]
    assert main(["serve", f"--{name.replace('_', '-')}", typed]) == 0
    assert served == [({name: value}, {})]
    assert build_config(served[0][0]) != EngineConfig() or name == "block_size"


def test_every_field_has_a_flag_in_this_table_or_is_a_switch() -> None:
    hints = {f.name for f in dataclasses.fields(EngineConfig) if f.type != "bool"}
    assert hints == set(TYPED)


@pytest.mark.parametrize(
    ("line", "engine", "server"),
    [
        pytest.param("/m", {"model": "/m"}, {}, id="model-is-positional"),
        pytest.param("--max_model_len=64", {"max_model_len": 64}, {}, id="underscores-and-equals-sign"),
        pytest.param("--num-gpu-blocks-override 9", {"num_blocks_override": 9}, {}, id="vllm-spelling"),
        pytest.param("--no-enable-prefix-caching", {"enable_prefix_caching": False}, {}, id="switch-off"),
        pytest.param("--port 0 --host 0.0.0.0", {}, {"port": 0, "host": "0.0.0.0"}, id="server"),
        pytest.param("--api-key a --api-key b", {}, {"api_key": ("a", "b")}, id="repeated"),
        pytest.param("", {}, {}, id="only-what-was-given"),
    ],
)
def test_serve_is_called_with(served: list, line: str, engine: dict, server: dict) -> None:
    assert main(["serve", *line.split()]) == 0
    assert served == [(engine, server)]


def test_server_values_make_a_server_config(served: list) -> None:
    main(["serve", "--port", "0", "--api-key", "a", "--access-log", "--ready-file", "/tmp/r", "--drain-timeout-s", "2"])
    config = ServerConfig(**served[0][1])
    assert (config.port, config.api_key, config.access_log, str(config.ready_file)) == (0, ("a",), True, "/tmp/r")


@pytest.mark.parametrize("flag", sorted(WITHOUT_EFFECT))
def test_a_flag_without_effect_is_taken_with_a_line_that_says_why(
    served: list, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    value = WITHOUT_EFFECT[flag].value
    assert main(["serve", flag, *(value[:1] if value else []), "--port", "1"]) == 0
    assert served == [({}, {"port": 1})]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(flag) and line.endswith(f"changes nothing: {WITHOUT_EFFECT[flag].why}")


@pytest.mark.parametrize("flag", sorted(name for name, flag in WITHOUT_EFFECT.items() if flag.value))
@pytest.mark.parametrize("form", ["{}=8", "{} 8"], ids=["equals", "space"])
def test_another_value_of_it_is_refused(flag: str, form: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} is '8', but only {WITHOUT_EFFECT[flag].value[0]}"):
        translate(["serve", *form.format(flag).split()])


@pytest.mark.parametrize("flag", sorted(NOT_HONOURED))
def test_what_is_not_honoured_is_refused_with_the_reason(flag: str) -> None:
    with pytest.raises(ConfigError) as caught:
        translate(["serve", flag.replace("-", "_").replace("__", "--"), "x"])
    assert caught.value.message.endswith(f"is not supported: {NOT_HONOURED[flag]}")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("short", sorted(SHORT))
def test_short_flags_are_known(short: str) -> None:
    with pytest.raises(ConfigError, match=f"^{short} "):
        translate(["serve", short, "8"])


def test_tables_do_not_hide_flags_of_ours() -> None:
    ours = {f"--{f.name.replace('_', '-')}" for c in (EngineConfig, ServerConfig) for f in dataclasses.fields(c)}
    assert not ours & (WITHOUT_EFFECT.keys() | NOT_HONOURED.keys())
    assert not WITHOUT_EFFECT.keys() & NOT_HONOURED.keys()


def test_gpu_memory_utilization_says_when_it_counts(served: list, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--gpu-memory-utilization", "0.8"]) == 0
    assert served == [({"gpu_memory_utilization": 0.8}, {})]
    assert "counts on a GPU only" in capsys.readouterr().err


def test_what_follows_two_hyphens_is_left_alone() -> None:
    assert translate(["serve", "--", "--lora_modules"]) == (["serve", "--", "--lora_modules"], [])
