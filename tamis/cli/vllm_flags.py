"""vLLM flags that are no fields of ours: those that change nothing here, and those we do not honour.

The first are taken with one line that says why; the second are errors that name what is missing. So a command
line written for vLLM either means the same here or says where it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamis.errors import ConfigError

_ONE_DEVICE = "this version runs a model on one device."
_NO_TOOLS = (
    "tool calls are not parsed out of the answer; tools are shown to the model and its text comes back as it is."
)
_NO_MEDIA = "this version reads text only."
_NO_LORA = "adapters are not loaded."
_NO_SPECULATION = "tokens are generated one at a time, without a drafter."


@dataclass(frozen=True)
class WithoutEffect:
    """A flag that asks for what always holds.

    Attributes:
        why: why nothing changes.
        value: None for a switch; otherwise the values that change nothing.
        refusal: why any other value cannot be honoured.
    """

    why: str
    value: tuple[str, ...] | None = None
    refusal: str = ""


WITHOUT_EFFECT = {
    "--disable-hybrid-kv-cache-manager": WithoutEffect("there is one cache, and its row holds all layers."),
    "--trust-remote-code": WithoutEffect("code in model folders is never run."),
    "--enforce-eager": WithoutEffect("no graphs are captured."),
    "--enable-chunked-prefill": WithoutEffect("long prompts are always prefilled in chunks."),
    "--async-scheduling": WithoutEffect("the next step is always planned while one runs."),
    "--enable-expert-parallel": WithoutEffect("one device holds all experts."),
    "--disable-log-requests": WithoutEffect("prompts are never logged."),
    "--no-enable-log-requests": WithoutEffect("prompts are never logged."),
    "--disable-log-stats": WithoutEffect("statistics are not logged; they are at /metrics."),
    "--tensor-parallel-size": WithoutEffect("one device is what it runs on.", ("1",), _ONE_DEVICE),
    "--pipeline-parallel-size": WithoutEffect("one device is what it runs on.", ("1",), _ONE_DEVICE),
    "--data-parallel-size": WithoutEffect("one device is what it runs on.", ("1",), _ONE_DEVICE),
    "--tokenizer-mode": WithoutEffect(
        "tokenizer.json is what is read.", ("auto", "hf"), "only tokenizer.json can be read."
    ),
    "--generation-config": WithoutEffect(
        "the checkpoint's own file is what is read.", ("auto",), "defaults come from the checkpoint's own file."
    ),
    "--runner": WithoutEffect("generating is all it does.", ("auto", "generate"), "this engine only generates text."),
}

NOT_HONOURED = {
    "--reasoning-parser": "reasoning is not split from the answer.",
    "--tool-call-parser": _NO_TOOLS,
    "--enable-auto-tool-choice": _NO_TOOLS,
    "--speculative-config": _NO_SPECULATION,
    "--speculative-model": _NO_SPECULATION,
    "--enable-lora": _NO_LORA,
    "--lora-modules": _NO_LORA,
    "--no-enable-chunked-prefill": "long prompts are always prefilled in chunks.",
    "--quantization": "weights are read in the formats that the config names; tamis quantize converts them.",
    "--chat-template": "chats are rendered with the checkpoint's own chat_template.jinja.",
    "--default-chat-template-kwargs": "chat_template_kwargs must be sent with each request.",
    "--override-generation-config": "sampling defaults come from the checkpoint's generation_config.json.",
    "--allowed-local-media-path": _NO_MEDIA,
    "--limit-mm-per-prompt": _NO_MEDIA,
    "--mm-processor-kwargs": _NO_MEDIA,
    "--revision": "the hub's default revision is read; name a folder to serve another one.",
    "--cpu-offload-gb": "weights stay where the model runs.",
    "--kv-transfer-config": "the cache is not transferred.",
    "--kv-offloading-size": "the cache is not offloaded.",
    "--distributed-executor-backend": _ONE_DEVICE,
    "--compilation-config": "nothing is compiled while it runs.",
    "--api-server-count": "one process answers HTTP.",
    "--ssl-keyfile": "put a proxy that speaks TLS in front.",
    "--ssl-certfile": "put a proxy that speaks TLS in front.",
    "--root-path": "the API is served at /v1.",
}

SHORT = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
    "-q": "--quantization",
}

# Fields of EngineConfig whose effect depends on the device.
_GPU_ONLY = "--gpu-memory-utilization"


def translate(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Take vLLM's flags out of a command line.

    Returns:
        The other arguments, with `_` in flag names turned into `-` as vLLM does, and one line for each flag that
        changes nothing.

    Raises:
        ConfigError: for a flag, or a value of one, that is not honoured.
    """
    kept: list[str] = []
    notes: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            return [*kept, argument, *rest], notes
        written, equals, value = argument.partition("=")
        name = SHORT.get(written, written.replace("_", "-") if written.startswith("--") else written)
        if name in NOT_HONOURED:
            raise ConfigError(f"{written} is not supported: {NOT_HONOURED[name]}", param=name, hint="Leave it out.")
        if name in WITHOUT_EFFECT:
            flag = WITHOUT_EFFECT[name]
            if flag.value is not None and not equals:
                value = rest.pop(0) if rest else ""
            notes.append(_note(written, value, flag))
            continue
        if name == _GPU_ONLY:
            notes.append(f"{name} counts on a GPU only; --kv-cache-memory-bytes sizes the cache on a CPU.")
        if name == "--prompt" and not equals and rest and rest[0] == "-":
            # A lone hyphen looks like a flag; with the equals sign it is a value.
            kept.append(f"--prompt={rest.pop(0)}")
            continue
        kept.append(name + equals + value)
    return kept, notes


def _note(written: str, value: str, flag: WithoutEffect) -> str:
    if flag.value is None:
        return f"{written} changes nothing: {flag.why}"
    if value not in flag.value:
        raise ConfigError(
            f"{written} is {value!r}, but only {' or '.join(flag.value)} is supported: {flag.refusal}",
            param=written,
            hint="Leave it out.",
        )
    return f"{written} {value} changes nothing: {flag.why}"
