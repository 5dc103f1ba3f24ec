"""What `tamis bench eval` is asked to do: one frozen value, from whose fields the flags are generated."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, get_args

from tamis.config import (
    BUNDLED_MODEL,
    AttentionConfig,
    CacheDtype,
    DequantContract,
    Device,
    Dtype,
    LoadFormat,
    Selection,
)
from tamis.errors import ConfigError

_MOST_ITEMS = 100_000
_MOST_A_TEXT = 400


def _help(text: str, **more: Any) -> dict[str, Any]:
    return {"help": text, **more}


def _parent(path: str) -> str:
    return os.path.dirname(path) or "."


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Everything that a run depends on; names as the engine's flags have them where they are the same thing."""

    model: str = field(
        default=BUNDLED_MODEL,
        metadata=_help("Model folder or hub id; the bundled model when left out.", positional=True),
    )
    skills: str = field(
        default="all",
        metadata=_help("Comma-separated skills, or all: needle_2k to needle_64k, the skills of train/skills, python."),
    )
    items: int = field(default=200, metadata=_help("Held-out questions a skill."))
    questions_a_text: int | None = field(
        default=None,
        metadata=_help(
            "Needle questions that share a text, which the prefix cache then holds; default: by its length."
        ),
    )
    perplexity_tokens: int = field(
        default=65_536, metadata=_help("Tokens of held-out Python files that perplexity is measured on.")
    )
    kv_cache_dtype: CacheDtype = field(
        default="nvfp4", metadata=_help("Dtype of cached keys and values; NVFP4 is what M3.1 was trained for.")
    )
    indexer_kv_dtype: CacheDtype = field(
        default="auto", metadata=_help("Dtype of cached index keys; auto is --kv-cache-dtype.")
    )
    dequant_contract: DequantContract = field(
        default="auto", metadata=_help("How NVFP4 is read: exact or e4m3; auto is e4m3 where anything is NVFP4.")
    )
    selection: Selection = field(
        default="model",
        metadata=_help("model, or random: blocks drawn instead of chosen, to see what choosing is worth."),
    )
    dtype: Dtype = field(default="auto", metadata=_help("Compute dtype, as for serving."))
    device: Device = field(default="auto", metadata=_help("Where the model runs."))
    load_format: LoadFormat = field(
        default="auto", metadata=_help("dummy: random weights, to try the road without a model.")
    )
    threads: int | None = field(default=None, metadata=_help("CPU threads; default: the cores this process may use."))
    max_num_seqs: int = field(default=64, metadata=_help("Most requests in one step."))
    max_num_batched_tokens: int = field(default=2048, metadata=_help("Token budget of one step."))
    seed: int = field(default=0, metadata=_help("Seed of the questions."))
    show_wrong: int = field(default=0, metadata=_help("Print so many wrong answers a skill to stderr."))
    json_out: str | None = field(default=None, metadata=_help("File that the JSON object is written to as well."))

    def __post_init__(self) -> None:
        # A text's first token is given: perplexity needs another.
        least = {"items": 1, "questions_a_text": 1, "perplexity_tokens": 2, "show_wrong": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise ConfigError(f"--{name.replace('_', '-')} is {value}, but must be at least {low}.", param=name)
        if (self.questions_a_text or 1) > _MOST_A_TEXT:
            raise ConfigError(
                f"--questions-a-text is {self.questions_a_text}, but must be at most {_MOST_A_TEXT}: there are no more "
                "facts whose names differ.",
                param="questions_a_text",
            )
        if self.items > _MOST_ITEMS:
            raise ConfigError(
                f"--items is {self.items}, but must be at most {_MOST_ITEMS}: no skill has so many.",
                param="items",
            )
        # Said now, not after an hour of questions.
        if self.json_out is not None and (os.path.isdir(self.json_out) or not os.path.isdir(_parent(self.json_out))):
            raise ConfigError(
                f"--json-out is {self.json_out!r}, which is a folder or lies in none.",
                param="json_out",
                hint="Name a file in a folder that exists.",
            )
        # The engine checks the others; these two are read here first.
        for name, choices in (("kv_cache_dtype", CacheDtype), ("indexer_kv_dtype", CacheDtype)):
            if getattr(self, name) not in get_args(choices):
                raise ConfigError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)!r}, but must be one of "
                    f"{', '.join(get_args(choices))}.",
                    param=name,
                )

    def engine_arguments(self) -> dict[str, Any]:
        """Fields of `EngineConfig`, less the model."""
        index = self.kv_cache_dtype if self.indexer_kv_dtype == "auto" else self.indexer_kv_dtype
        contract = self.dequant_contract
        if contract == "auto" and "nvfp4" in (self.kv_cache_dtype, index):
            contract = "e4m3"
        return {
            "kv_cache_dtype": self.kv_cache_dtype,
            "attention_config": AttentionConfig(
                indexer_kv_dtype=index, dequant_contract=contract, selection=self.selection
            ),
            "dtype": self.dtype,
            "device": self.device,
            "load_format": self.load_format,
            "threads": self.threads,
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }
