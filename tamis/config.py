"""Engine configuration: one frozen value, built once from flags, passed down. Field names are vLLM's flags.

`EngineConfig.resolve` fills every "auto" from the hardware and the checkpoint and returns a new value; nothing
below it reads the environment. Each field's metadata holds its help text, from which the flags are generated.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, get_args

from typing import Literal

from tamis.errors import ConfigError

Dtype = Literal["auto", "float32", "bfloat16"]
CacheDtype = Literal["auto", "float32", "bfloat16", "fp8", "nvfp4"]
LoadFormat = Literal["auto", "safetensors", "dummy"]
SchedulingPolicy = Literal["fcfs", "priority"]
Device = Literal["auto", "cpu", "cuda"]
DequantContract = Literal["auto", "exact", "e4m3"]

BLOCK_TOKENS = 128
BUNDLED_MODEL = "nano"


def _flag(default: Any, help: str, **kwargs: Any) -> Any:
    if callable(default):
        return field(default_factory=default, metadata={"help": help, **kwargs})
    return field(default=default, metadata={"help": help, **kwargs})


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The JSON of `--attention-config`.

    Attributes:
        indexer_kv_dtype: dtype of the index lane; "auto" follows the checkpoint, as `kv_cache_dtype` does.
        dequant_contract: how NVFP4 lanes are read: "exact" (e2m1·scale) or "e4m3" (rounded to E4M3 again, queries
            cast to E4M3, as M3.1 was trained); "auto" is "exact".
    """

    indexer_kv_dtype: CacheDtype = "auto"
    dequant_contract: DequantContract = "auto"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything the engine process needs. Units are in the names; None means "work it out in `resolve`"."""

    model: str = _flag(BUNDLED_MODEL, "Model folder or hub id; the bundled model when left out.", positional=True)
    tokenizer: str | None = _flag(None, "Folder or hub id of the tokenizer, when it is not the model's own.")
    served_model_name: str | None = _flag(None, "Name under which the API lists the model.")
    load_format: LoadFormat = _flag("auto", "safetensors, or dummy: random weights of the config's shapes.")
    hf_overrides: dict[str, Any] = _flag(dict, "JSON merged into config.json, e.g. '{\"num_hidden_layers\": 2}'.")
    dtype: Dtype = _flag("auto", "Compute dtype; auto is float32 on a CPU, the checkpoint's on a GPU.")
    device: Device = _flag("auto", "Where the model runs.")
    threads: int | None = _flag(None, "CPU threads; default: the cores this process may use.")
    seed: int = _flag(0, "Seed for dummy weights and for requests that bring none.")
    max_model_len: int | None = _flag(None, "Longest context in tokens, prompt and output; default: the model's own.")
    block_size: int = _flag(BLOCK_TOKENS, "Tokens a cache block; MSA models fix it at 128.")
    kv_cache_dtype: CacheDtype = _flag("auto", "Dtype of cached keys and values; auto is the checkpoint's.")
    attention_config: AttentionConfig = _flag(AttentionConfig, "JSON, e.g. '{\"indexer_kv_dtype\": \"nvfp4\"}'.")
    num_blocks_override: int | None = _flag(
        None, "Blocks in the pool, whatever the memory.", alias="num-gpu-blocks-override"
    )
    kv_cache_memory_bytes: int | None = _flag(None, "Memory for the pool; default: a share of what is free.")
    gpu_memory_utilization: float = _flag(0.9, "Share of GPU memory for weights and pool; no effect on a CPU.")
    enable_prefix_caching: bool = _flag(True, "Share the blocks of equal prefixes.")
    max_num_seqs: int = _flag(64, "Most requests in one step.")
    max_num_batched_tokens: int = _flag(2048, "Token budget of one step; longer prompts are prefilled in chunks.")
    max_queued_requests: int = _flag(1024, "Waiting requests beyond which new ones are refused with 429.")
    scheduling_policy: SchedulingPolicy = _flag("fcfs", "fcfs, or priority: lower values first.")

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            allowed = _literals(f.name)
            if allowed and getattr(self, f.name) not in allowed:
                raise ConfigError(
                    f"--{f.name.replace('_', '-')} is {getattr(self, f.name)!r}, but must be one of "
                    f"{', '.join(allowed)}.",
                    param=f.name,
                )
        if self.block_size != BLOCK_TOKENS:
            raise ConfigError(
                f"--block-size is {self.block_size}, but MSA models are trained with blocks of {BLOCK_TOKENS} tokens.",
                param="block_size",
                hint=f"Leave it out or pass {BLOCK_TOKENS}.",
            )
        for name in ("max_model_len", "threads", "num_blocks_override", "kv_cache_memory_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} is {value}, but must be at least 1.", param=name)
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_queued_requests"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}, but must be at least 1.", param=name
                )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens}, less than --max-num-seqs "
                f"({self.max_num_seqs}): a decode step would not fit.",
                param="max_num_batched_tokens",
                hint="Raise the first or lower the second.",
            )
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ConfigError(
                f"--gpu-memory-utilization is {self.gpu_memory_utilization}, but must be over 0 and at most 1.",
                param="gpu_memory_utilization",
            )

    def replace(self, **changes: Any) -> EngineConfig:
        """A changed copy, checked again."""
        return dataclasses.replace(self, **changes)


def _literals(name: str) -> tuple[str, ...]:
    kinds = {
        "load_format": LoadFormat,
        "dtype": Dtype,
        "device": Device,
        "kv_cache_dtype": CacheDtype,
        "scheduling_policy": SchedulingPolicy,
    }
    return get_args(kinds[name]) if name in kinds else ()
