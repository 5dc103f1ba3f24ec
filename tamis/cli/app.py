"""The commands and their flags."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import cyclopts
from cyclopts import App, Parameter

from tamis.bench.eval_config import EvalConfig
from tamis.cli.flags import config_values, flags_of
from tamis.cli.sampling_flags import SamplingFlags
from tamis.cli.vllm_flags import translate
from tamis.config import EngineConfig
from tamis.errors import ConfigError
from tamis.server.config import ServerConfig
from tamis.version import __version__

# Flags that only mean something with many requests; offline commands run one. Their --seed is the request's, and
# the engine's with it.
_NOT_OFFLINE = frozenset(
    {"served_model_name", "max_num_seqs", "max_queued_requests", "scheduling_policy", "enable_prefix_caching", "seed"}
)


def run(arguments: Sequence[str]) -> int:
    """Parse and run a command line; returns the exit code.

    Raises:
        ConfigError: an unknown command or flag (naming the nearest) or a value of the wrong type.
        TamisError: whatever the command fails with.
    """
    app = build_app()
    tokens, notes = translate(arguments)
    try:
        command, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        raise ConfigError(" ".join(str(error).split()), hint="See --help.") from error
    for note in notes:
        print(note, file=sys.stderr)
    return command(*bound.args, **bound.kwargs) or 0


def build_app() -> App:
    """The `tamis` application."""
    app = App(
        name="tamis",
        help="Serve MiniMax Sparse Attention models, from a laptop CPU to Hopper GPUs.",
        version=__version__,
    )
    _add(app, "serve", _serve, flags_of(EngineConfig) + flags_of(ServerConfig))
    offline = flags_of(EngineConfig, leave_out=_NOT_OFFLINE)
    model, *engine = offline
    _add(app, "generate", _generate, [model, *_GENERATE_FLAGS, *flags_of(SamplingFlags), *engine])
    _add(app, "chat", _chat, [model, *_CHAT_FLAGS, *flags_of(SamplingFlags), *engine])
    _add(app, "doctor", _doctor, [_flag("json", bool, False, "Print one JSON object.")])
    app.command(_quantize, name="quantize")
    bench = App(name="bench", help="Measure what is served.")
    _add(bench, "eval", _bench_eval, flags_of(EvalConfig))
    app.command(bench)
    return app


def _serve(**values: Any) -> int:
    """Serve a model over the OpenAI API.

    Without MODEL the bundled one is served. The address is printed as soon as the port is bound; /health says 503
    until the model is loaded.
    """
    from tamis.cli.serve import serve

    return serve(config_values(EngineConfig, values), config_values(ServerConfig, values))


def _generate(*, prompt: str, json: bool = False, chat: bool = False, system: str | None = None, **values: Any) -> int:
    """Complete one prompt, in this process.

    Text goes to stdout as it comes, everything else to stderr.
    """
    from tamis.cli.generate import generate

    return generate(
        config_values(EngineConfig, values),
        config_values(SamplingFlags, values),
        prompt=prompt,
        as_json=json,
        as_chat=chat,
        system=system,
    )


def _chat(*, url: str | None = None, api_key: str | None = None, system: str | None = None, **values: Any) -> int:
    """Chat with a model, in this process or on a server.

    /help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves. Input may be piped in: each line is a message.
    """
    from tamis.cli.chat import chat

    return chat(
        config_values(EngineConfig, values),
        config_values(SamplingFlags, values),
        url=url,
        api_key=api_key,
        system=system,
    )


def _doctor(*, json: bool = False) -> int:
    """Say what this machine can serve with, and what is missing."""
    from tamis.cli.doctor import run as examine

    return examine(json)


def _bench_eval(**values: Any) -> int:
    """Score a model's skills on held-out questions, through the engine.

    Answers are greedy and compared exactly. The last line of stdout is one JSON object.
    """
    from tamis.cli.bench import evaluate

    return evaluate(values)


def _quantize(
    source: Annotated[str, Parameter(help="Checkpoint to convert: a folder, a hub id, or nano.")],
    folder: Annotated[str, Parameter(help="Where to write; an interrupted conversion goes on.")],
    /,
    *,
    format: Annotated[
        Literal["m3.1", "modelopt", "mxfp8", "bf16"],
        Parameter(help="m3.1 and modelopt: NVFP4 experts, MXFP8 elsewhere, in two layouts; mxfp8; bf16."),
    ],
    shard_size: Annotated[str, Parameter(help="Most bytes of a weight file.")] = "5GB",
) -> int:
    """Convert a checkpoint between bf16, MXFP8 and NVFP4.

    Every format that loads can be converted to every other; docs/checkpoints.md says which conversions are exact.
    """
    from tamis.cli.quantize import quantize

    return quantize(source, folder, target=format, shard_size=shard_size)


def _flag(name: str, kind: Any, default: Any, help: str) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[
            kind, Parameter(name=f"--{name.replace('_', '-')}", help=help, negative=(), show_default=False)
        ],
    )


_SYSTEM_FLAG = _flag("system", str | None, None, "System message of the chat.")
_GENERATE_FLAGS = [
    _flag("prompt", str, inspect.Parameter.empty, "Text to complete; - reads it from stdin."),
    _flag("json", bool, False, "Print one JSON object with text, token ids and timing instead of text."),
    _flag("chat", bool, False, "Treat the prompt as a chat message and apply the model's template."),
    _SYSTEM_FLAG,
]
_CHAT_FLAGS = [
    _flag("url", str | None, None, "A running server to chat with, e.g. http://127.0.0.1:8000."),
    _flag("api_key", str | None, None, "Key of that server."),
    _SYSTEM_FLAG,
]


def _add(app: App, name: str, command: Callable[..., int], flags: list[inspect.Parameter]) -> None:
    # cyclopts reads types, names and help from the signature; the function itself takes them as keywords.
    def call(*positional: Any, **values: Any) -> int:
        if positional:
            (values["model"],) = positional
        return command(**values)

    call.__doc__ = command.__doc__
    call.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]
    app.command(call, name=name)
