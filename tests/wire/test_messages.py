from __future__ import annotations

import logging
import re

import msgspec
import pytest

from tamis.config import AttentionConfig, EngineConfig
from tamis.engine.messages import EngineInfo, EngineRequest, EngineStats, ErrorInfo, RequestDelta
from tamis.engine.plan import TokenLogprobs
from tamis.engine.protocol import (
    Abort,
    Add,
    Command,
    Deltas,
    Died,
    Event,
    GetStats,
    Loaded,
    LoadFailed,
    Loading,
    Refused,
    Stats,
    Stop,
    Unreadable,
)
from tamis.engine.sampling_params import SamplingParams
from tamis.errors import ContextLengthError, EngineDeadError, OverloadedError, TamisError
from tamis.wire.messages import Start, decode_command, decode_event, decode_start, encode

ERROR = ErrorInfo.of(ContextLengthError("Too long.", param="prompt", hint="Shorten it."))
REQUEST = EngineRequest(
    request_id="a",
    prompt_token_ids=[1, 2, 200_063],
    sampling=SamplingParams(max_tokens=None, seed=-1, logit_bias={7: -1.5}, stop=["ü"], logprobs=3),
    eos_token_ids=[9],
    priority=-2,
    cache_salt="",
)
DELTA = RequestDelta(
    request_id="a",
    token_ids=[5],
    logprobs=[TokenLogprobs(logprob=-0.5, top_token_ids=[5], top_logprobs=[-0.5])],
    finish_reason="error",
    error=ERROR,
)
INFO = EngineInfo(
    model="m",
    vocab_size=10,
    max_model_len=20,
    num_blocks=3,
    block_size=128,
    max_num_seqs=4,
    max_num_batched_tokens=5,
    card={"dtype": "float32"},
)


def name(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize("command", [Add(REQUEST), Abort(["a", "b"]), GetStats(3), Stop()], ids=name)
def test_commands_arrive_as_they_were_sent(command: Command) -> None:
    assert decode_command(encode(command)) == command


@pytest.mark.parametrize(
    "event",
    [
        Loading("warming_up", 3),
        Loaded(INFO),
        LoadFailed(ERROR),
        Deltas([DELTA, DELTA]),
        Refused("a", ERROR),
        Stats(3, EngineStats(num_running=2, step_s=0.25)),
        Died("gone"),
    ],
    ids=name,
)
def test_events_arrive_as_they_were_sent(event: Event) -> None:
    assert decode_event(encode(event)) == event


def test_a_start_carries_the_whole_config() -> None:
    config = EngineConfig(
        hf_overrides={"num_hidden_layers": 2},
        attention_config=AttentionConfig(indexer_kv_dtype="nvfp4"),
        scheduling_policy="priority",
        max_model_len=300,
    )
    start = Start(config=config, loader="m:f", socket_dir="d", command_address="c", event_address="e")
    assert decode_start(encode(start)) == start


MALFORMED = [
    pytest.param(b"", id="empty"),
    pytest.param(b"\xc1\xff garbage", id="no msgpack"),
    pytest.param(b"\x82\xa4type\xa3Add\xa7request" + b"\x91" * 100_000, id="deeply nested"),
    pytest.param(encode(Add(REQUEST))[:-3], id="truncated"),
    pytest.param(msgspec.msgpack.encode({"type": "Explode"}), id="unknown kind"),
    pytest.param(msgspec.msgpack.encode({"type": "Abort", "request_ids": 5}), id="wrong type"),
    pytest.param(msgspec.msgpack.encode({"type": "Add", "request": {"request_id": 5}}), id="no name"),
]


@pytest.mark.parametrize("frame", MALFORMED)
def test_a_malformed_event_is_logged_and_dropped(frame: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert decode_event(frame) is None
    assert [f"{len(frame)} bytes was dropped" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("frame", MALFORMED)
def test_a_malformed_command_is_unreadable(frame: bytes) -> None:
    command = decode_command(frame)
    assert isinstance(command, Unreadable)
    assert command.reason.startswith(f"a command of {len(frame)} bytes cannot be read: ")


@pytest.mark.parametrize(
    ("sampling", "kind", "says"),
    [
        pytest.param({"top_p": 7}, "InvalidRequestError", "top_p is 7", id="value"),
        pytest.param({"top_k": 20.5}, "TamisError", "Expected `int`.*top_k", id="type"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_to_its_owner(sampling: dict, kind: str, says: str) -> None:
    add = {"type": "Add", "request": {"request_id": "a", "prompt_token_ids": [1], "sampling": sampling}}
    refused = decode_command(msgspec.msgpack.encode(add))
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.error.kind) == ("a", kind)
    assert re.search(says, refused.error.message)


@pytest.mark.parametrize(
    "error",
    [
        ContextLengthError("Too long.", param="prompt", hint="Shorten it."),
        OverloadedError("Full.", retry_after_s=17),
        EngineDeadError("Gone.", retry_after_s=3),
        TamisError("Odd.", code="odd"),
    ],
    ids=name,
)
def test_an_error_is_itself_on_the_other_side(error: TamisError) -> None:
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(ErrorInfo.of(error)), type=ErrorInfo).to_error()
    assert type(copy) is type(error)
    assert vars(copy).items() >= vars(error).items()
    assert (copy.status, copy.retry_after_s, copy.sentence()) == (error.status, error.retry_after_s, error.sentence())


@pytest.mark.parametrize("kind", ["Unheard", "annotations", "Any"])
def test_an_error_of_an_unknown_kind_keeps_its_words(kind: str) -> None:
    error = ErrorInfo(kind=kind, message="Hm.", code="hm", status=418).to_error()
    assert (type(error), error.message, error.code, error.status) == (TamisError, "Hm.", "hm", 418)
