"""Engine configuration: one frozen value, built once from flags, passed down. Field names are vLLM's flags.

Every "auto" is resolved once, when the engine is loaded (`runner/load.py`), and the start-up card says to what;
nothing below reads the environment. Each field's metadata holds its help text, from which flags are generated.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tamis.errors import ConfigError

Dtype = Literal["auto", "float32", "bfloat16"]
CacheDtype = Literal["auto", "float32", "bfloat16", "fp8", "nvfp4"]
LoadFormat = Literal["auto", "safetensors", "dummy"]
SchedulingPolicy = Literal["fcfs", "priority"]
Device = Literal["auto", "cpu", "cuda"]
DequantContract = Literal["auto", "exact", "e4m3"]
Selection = Literal["model", "random"]

BLOCK_TOKENS = 128
BUNDLED_MODEL = "nano"


def _help(text: str, **more: Any) -> dict[str, Any]:
    """Field metadata: the flag's help text; `alias` is another spelling, `positional` the command's argument."""
    return {"help": text, **more}


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The JSON of `--attention-config`.

    Attributes:
        indexer_kv_dtype: dtype of the index lane; "auto" follows the checkpoint, as `kv_cache_dtype` does.
        dequant_contract: how NVFP4 lanes are read: "exact" (e2m1·scale) or "e4m3" (rounded to E4M3 again, queries
            cast to E4M3); "auto" is "e4m3" for M3.1, which was trained so, and "exact" for others.
        selection: who chooses the blocks a query reads: "model" is its indexer; "random" draws them, forced ones kept.
            A measuring device, never a way to serve: what random blocks still answer, the indexer need not be good for.
    """

    indexer_kv_dtype: CacheDtype = "auto"
    dequant_contract: DequantContract = "auto"
    selection: Selection = "model"

    def __post_init__(self) -> None:
        _check_choice("--attention-config indexer_kv_dtype", self.indexer_kv_dtype, CacheDtype)
        _check_choice("--attention-config dequant_contract", self.dequant_contract, DequantContract)
        _check_choice("--attention-config selection", self.selection, Selection)


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Everything the engine process needs. Units are in the names; None and "auto" are worked out at load."""

    model: str = field(
        default=BUNDLED_MODEL,
        metadata=_help("Model folder or hub id; the bundled model when left out.", positional=True),
    )
    tokenizer: str | None = field(
        default=None, metadata=_help("Folder or hub id of the tokenizer, when it is not the model's own.")
    )
    served_model_name: str | None = field(default=None, metadata=_help("Name under which the API lists the model."))
    load_format: LoadFormat = field(
        default="auto", metadata=_help("safetensors, or dummy: random weights of the config's shapes.")
    )
    hf_overrides: dict[str, Any] = field(
        default_factory=dict, metadata=_help("JSON merged into config.json, e.g. '{\"num_hidden_layers\": 2}'.")
    )
    dtype: Dtype = field(
        default="auto", metadata=_help("Compute dtype; auto is float32 on a CPU, the checkpoint's on a GPU.")
    )
    device: Device = field(default="auto", metadata=_help("Where the model runs."))
    threads: int | None = field(default=None, metadata=_help("CPU threads; default: the cores this process may use."))
    seed: int = field(default=0, metadata=_help("Seed for dummy weights and for requests that bring none."))
    max_model_len: int | None = field(
        default=None, metadata=_help("Longest context in tokens, prompt and output; default: the model's own.")
    )
    block_size: int = field(default=BLOCK_TOKENS, metadata=_help("Tokens a cache block; MSA models fix it at 128."))
    kv_cache_dtype: CacheDtype = field(
        default="auto", metadata=_help("Dtype of cached keys and values; auto is the checkpoint's.")
    )
    attention_config: AttentionConfig = field(
        default_factory=AttentionConfig, metadata=_help('JSON, e.g. \'{"indexer_kv_dtype": "nvfp4"}\'.')
    )
    num_blocks_override: int | None = field(
        default=None, metadata=_help("Blocks in the pool, whatever the memory.", alias="num-gpu-blocks-override")
    )
    kv_cache_memory_bytes: int | None = field(
        default=None, metadata=_help("Memory for the pool; default: a share of what is free.")
    )
    gpu_memory_utilization: float = field(
        default=0.9, metadata=_help("Share of GPU memory for weights and pool; no effect on a CPU.")
    )
    enable_prefix_caching: bool = field(default=True, metadata=_help("Share the blocks of equal prefixes."))
    max_num_seqs: int = field(default=64, metadata=_help("Most requests in one step."))
    max_num_batched_tokens: int = field(
        default=2048, metadata=_help("Token budget of one step; longer prompts are prefilled in chunks.")
    )
    max_queued_requests: int = field(
        default=1024, metadata=_help("Waiting requests beyond which new ones are refused with 429.")
    )
    scheduling_policy: SchedulingPolicy = field(
        default="fcfs", metadata=_help("fcfs, or priority: lower values first.")
    )

    def __post_init__(self) -> None:
        _check_choice("--load-format", self.load_format, LoadFormat)
        _check_choice("--dtype", self.dtype, Dtype)
        _check_choice("--device", self.device, Device)
        _check_choice("--kv-cache-dtype", self.kv_cache_dtype, CacheDtype)
        _check_choice("--scheduling-policy", self.scheduling_policy, SchedulingPolicy)
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
        if not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"--seed is {self.seed}, but must be a 64-bit integer.", param="seed")
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


def _check_choice(flag: str, value: object, choices: Any) -> None:
    allowed = get_args(choices)
    if value not in allowed:
        raise ConfigError(
            f"{flag} is {value!r}, but must be one of {', '.join(allowed)}.", param=flag.split()[-1].lstrip("-")
        )
