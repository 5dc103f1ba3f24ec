"""Sizes of model, data and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tamis.errors import ConfigError
from tamis.models.config import M3Config, parse_config


@dataclass(frozen=True)
class Mixture:
    """What a phase reads, as shares of its tokens: adds up to 1.

    Attributes:
        chat: talk and small knowledge. skill: exercises that are scored. needle: long texts with facts to find.
        functions: small Python functions. library: files of Python's library. drill: the exercises that are hardest
            for a model of this size (`rows.DRILLED`).
    """

    chat: float
    skill: float
    needle: float
    functions: float
    library: float
    drill: float = 0.0


@dataclass(frozen=True)
class Phase:
    """A stretch of training, one command.

    Attributes:
        name: of the command line and of the folder it writes.
        minutes: the schedule ends by then, or after `steps`.
        length: tokens a row. rows: rows a step. With rows · length the same in all phases, layers compile once.
        learning_rate: at the start and at the end; a straight line between them.
        index_sees_all: see `TrainAttention`.
        quantized: weights, cache and queries rounded as they will be served (see `quantization`).
        gaps: share of rows whose positions jump, so that distances up to the longest context are seen.
    """

    name: str
    minutes: float
    steps: int
    length: int
    rows: int
    learning_rate: tuple[float, float]
    mixture: Mixture
    index_sees_all: bool = True
    quantized: bool = False
    gaps: float = 0.0


@dataclass(frozen=True)
class Preset:
    """Everything that the run depends on beside the installed text.

    Attributes:
        text_config: of config.json, in M3's own spelling; vocab_size is the tokenizer's.
        phases: in order; each starts from the weights of the one before.
        averaged: phases the mean of whose weights is the model.
        quick_items: held-out questions a skill for the quick scores after a phase.
        tokenizer_chats: generated texts that the tokenizer sees. library_files: files it reads at most, None for all.
        max_length: the context that config.json promises.
    """

    name: str
    text_config: dict[str, Any]
    phases: tuple[Phase, ...]
    averaged: tuple[str, ...]
    quick_items: int
    tokenizer_chats: int
    library_files: int | None
    max_length: int

    def config(self) -> M3Config:
        """The model's shape."""
        return parse_config(self.config_json())

    def config_json(self) -> dict[str, Any]:
        """config.json in the hub's spelling, less the ids of special tokens."""
        return {
            "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
            "model_type": "minimax_m3_vl",
            "torch_dtype": "bfloat16",
            "tie_word_embeddings": False,
            "text_config": {**self.text_config, "max_position_embeddings": self.max_length},
        }

    def phase(self, name: str) -> Phase:
        """One of `phases`.

        Raises:
            ConfigError: another name.
        """
        for phase in self.phases:
            if phase.name == name:
                return phase
        known = ", ".join(p.name for p in self.phases)
        raise ConfigError(f"The preset {self.name} has no phase {name!r}, but {known}.", param="command")


def _text_config(*, layers: int, **sizes: int) -> dict[str, Any]:
    """M3.1's own constants around the given sizes: MSA in every layer, a dense MLP in the first."""
    sparse = [1] * layers
    return {
        "model_type": "minimax_m3_vl_text",
        **sizes,
        "num_hidden_layers": layers,
        "head_dim": 128,
        "rotary_dim": 64,
        "partial_rotary_factor": 0.5,
        "rope_theta": 5000000.0,
        "rms_norm_eps": 1e-6,
        "hidden_act": "swigluoai",
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "moe_layer_freq": [0] + [1] * (layers - 1),
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": 2.0,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": 128,
            "sparse_num_index_heads": sizes["num_key_value_heads"],
            "sparse_topk_blocks": 16,
            "sparse_block_size": 128,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": sparse,
            "sparse_disable_index_value": sparse,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


NANO = Preset(
    name="nano",
    text_config=_text_config(
        layers=6,
        vocab_size=4096,
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=192,
        dense_intermediate_size=768,
        shared_intermediate_size=256,
        num_local_experts=16,
        num_experts_per_tok=2,
    ),
    phases=(
        Phase("short", 5.3, 6000, 1024, 96, (3e-3, 1e-3), Mixture(0.24, 0.40, 0.20, 0.03, 0.13)),
        Phase(
            "long", 2.4, 1200, 8192, 12, (1e-3, 5e-4), Mixture(0.12, 0.26, 0.46, 0.02, 0.14), quantized=True, gaps=0.5
        ),
        Phase(
            "rounded", 3.5, 3000, 1024, 96, (1.2e-3, 2e-4), Mixture(0.13, 0.22, 0.16, 0.02, 0.12, 0.35), quantized=True
        ),
        Phase(
            "longest",
            3.8,
            500,
            32768,
            3,
            (3e-4, 0.0),
            Mixture(0.09, 0.14, 0.50, 0.02, 0.09, 0.16),
            quantized=True,
            gaps=0.5,
        ),
        Phase(
            "alike",
            8.4,
            3000,
            8192,
            12,
            (1e-3, 0.0),
            Mixture(0.11, 0.14, 0.31, 0.02, 0.07, 0.35),
            quantized=True,
            gaps=0.5,
        ),
        Phase(
            "drilled",
            3.7,
            6000,
            1024,
            96,
            (1.2e-3, 5e-4),
            Mixture(0.11, 0.15, 0.16, 0.02, 0.13, 0.43),
            quantized=True,
            gaps=0.5,
        ),
        Phase(
            "settled",
            3.4,
            1200,
            8192,
            12,
            (5e-4, 0.0),
            Mixture(0.10, 0.13, 0.30, 0.02, 0.10, 0.35),
            quantized=True,
            gaps=0.5,
        ),
    ),
    averaged=("alike", "settled"),
    quick_items=200,
    tokenizer_chats=12_000,
    library_files=None,
    max_length=131_072,
)

TOY = Preset(
    name="toy",
    text_config=_text_config(
        layers=2,
        vocab_size=640,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=32,
        dense_intermediate_size=128,
        shared_intermediate_size=32,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    phases=(
        Phase("short", 1.0, 15, 128, 4, (5e-3, 3e-3), Mixture(0.3, 0.3, 0.2, 0.1, 0.1)),
        Phase("longest", 1.0, 4, 2304, 1, (3e-3, 0.0), Mixture(0.2, 0.2, 0.4, 0.1, 0.1), False, True, 0.5),
    ),
    averaged=("short", "longest"),
    quick_items=10,
    tokenizer_chats=150,
    library_files=3,
    max_length=4096,
)

PRESETS = {preset.name: preset for preset in (NANO, TOY)}
