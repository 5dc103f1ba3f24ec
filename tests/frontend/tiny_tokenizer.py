"""A byte-level tokenizer of 300-odd tokens with the family's markers, saved as a checkpoint folder would have it."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

MARKERS = [
    "]~!b[",
    "]~b]",
    "[e~[",
    "]<]image[>[",
    "]<]video[>[",
    "]<]start of image[>[",
    "]<]end of image[>[",
    "]<]minimax[>[",
    "<mm:think>",
    "</mm:think>",
]


def write_tokenizer(folder: Path) -> Path:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=MARKERS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the thin thing that there other is in hello world"] * 20, trainer)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[e~[", "bos_token": "]~!b["}))
    (folder / "generation_config.json").write_text(
        json.dumps({"temperature": 0.7, "top_k": 40, "eos_token_id": backend.token_to_id("[e~[")})
    )
    return folder
