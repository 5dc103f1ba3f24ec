"""A folder to be scored without a trained model: small config, a tokenizer, random weights (`--load-format dummy`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tamis.train.chats import Draw, conversation, render
from tamis.train.export import TEMPLATE
from tamis.train.skills import skill_text
from tamis.train.tokenizer import END_OF_TURN, save_tokenizer, train_tokenizer

VOCAB = 700


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    texts = [skill_text(Draw(seed)) for seed in range(150)] + [render(conversation(Draw(seed))) for seed in range(150)]
    tokenizer = train_tokenizer(texts, VOCAB)
    config = {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "torch_dtype": "bfloat16",
        "text_config": {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "rotary_dim": 16,
            "rope_theta": 10000.0,
            "intermediate_size": 24,
            "dense_intermediate_size": 48,
            "shared_intermediate_size": 24,
            "num_local_experts": 3,
            "num_experts_per_tok": 1,
            "max_position_embeddings": 8192,
            "moe_layer_freq": [0, 1],
            "eos_token_id": tokenizer.token_to_id(END_OF_TURN),
            "sparse_attention_config": {
                "sparse_num_index_heads": 1,
                "sparse_index_dim": 32,
                "sparse_topk_blocks": 3,
                "sparse_attention_freq": [1, 1],
            },
        },
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_tokenizer(tokenizer, folder, max_length=8192, chat_template=TEMPLATE.read_text(encoding="utf-8"))
    return folder
