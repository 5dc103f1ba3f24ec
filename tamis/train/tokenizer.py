"""The byte-level BPE of the bundled checkpoint, with the family's special tokens in its own vocabulary."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BEGIN_OF_DOCUMENT = "]~!b["
BEGIN_OF_TURN = "]~b]"
END_OF_TURN = "[e~["
IMAGE = "]<]image[>["
VIDEO = "]<]video[>["
# In ascending id, at the end of the vocabulary as in the family's own.
SPECIAL_TOKENS = (
    BEGIN_OF_TURN,
    END_OF_TURN,
    IMAGE,
    VIDEO,
    "]<]start of image[>[",
    "]<]end of image[>[",
    BEGIN_OF_DOCUMENT,
)
# Text that readers of the output must see: not skipped when special tokens are.
VISIBLE_TOKENS = ("]<]minimax[>[", "<mm:think>", "</mm:think>")

# Words with their leading space, single digits (sums are learnt digit by digit), runs of signs, line ends with the
# blank before them, other blanks.
_PIECES = Regex(r"[^\S\r\n]?[^\W\d_]+|\d|[^\S\r\n]?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+")


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train on `texts`; `vocab_size` includes the added tokens, which take the highest ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    added = len(SPECIAL_TOKENS) + len(VISIBLE_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=24,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in VISIBLE_TOKENS])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, *, max_length: int, chat_template: str) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN_OF_DOCUMENT,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TURN,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_length,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
