"""Sizes of model, data and schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tamis.models.config import M3Config, parse_config


@dataclass(frozen=True)
class Phase:
    """A stretch of training.

    Attributes:
        until: share of the whole run at which it ends.
        length: tokens a row.
        rows: rows a step. With rows · length the same in all phases, the layers compile once.
        num_needles, needle_chars: prompts with codes to find, and the longest of them in characters.
        share: of the other documents that the phase draws from.
        index_sees_all: see `TrainAttention`.
    """

    until: float
    length: int
    rows: int
    num_needles: int
    needle_chars: int
    share: float = 1.0
    index_sees_all: bool = False


@dataclass(frozen=True)
class Preset:
    """Everything that the run depends on beside the installed text.

    Attributes:
        text_config: of config.json, in M3's own spelling; vocab_size is the tokenizer's.
        phases: in order; the last one ends at 1.0.
        num_chats, num_functions: generated documents. library_repeats: copies of each library file.
        answer_tokens: longest answer of the scores.
    """

    name: str
    text_config: dict[str, Any]
    phases: tuple[Phase, ...]
    steps: int
    learning_rate: float
    num_chats: int
    num_functions: int
    library_repeats: int
    library_files: int | None
    max_length: int
    answer_tokens: int

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


def _text_config(*, layers: int, full_layers: int, **sizes: int) -> dict[str, Any]:
    """M3's own constants around the given sizes; the first `full_layers` are full-attention and dense."""
    sparse = [int(layer >= full_layers) for layer in range(layers)]
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
        "moe_layer_freq": sparse,
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
        layers=5,
        full_layers=1,
        vocab_size=4096,
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        dense_intermediate_size=704,
        shared_intermediate_size=192,
        num_local_experts=8,
        num_experts_per_tok=2,
    ),
    phases=(
        Phase(0.9, 1024, 96, num_needles=8_000, needle_chars=3_000, index_sees_all=True),
        Phase(0.97, 4096, 24, num_needles=5_000, needle_chars=13_000, share=0.2, index_sees_all=True),
        Phase(1.0, 8192, 12, num_needles=2_500, needle_chars=25_000, share=0.2),
    ),
    steps=5200,
    learning_rate=3e-3,
    num_chats=600_000,
    num_functions=80_000,
    library_repeats=3,
    library_files=None,
    max_length=8192,
    answer_tokens=120,
)

TOY = Preset(
    name="toy",
    text_config=_text_config(
        layers=2,
        full_layers=1,
        vocab_size=512,
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
        Phase(0.9, 128, 4, num_needles=10, needle_chars=600, index_sees_all=True),
        Phase(1.0, 2304, 1, num_needles=10, needle_chars=2_000),
    ),
    steps=20,
    learning_rate=5e-3,
    num_chats=150,
    num_functions=50,
    library_repeats=1,
    library_files=3,
    max_length=4096,
    answer_tokens=4,
)

PRESETS = {preset.name: preset for preset in (NANO, TOY)}
