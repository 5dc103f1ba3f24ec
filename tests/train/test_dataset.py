"""Tokens, loss weights and rows."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from tamis.train.chats import Chat, Draw, Turn, conversation, render
from tamis.train.corpus import library_sources, prose_paragraphs, reference_topics
from tamis.train.dataset import READ, SPOKEN, Documents, Encoder, generated, library, pack, worker_pool
from tamis.train.tokenizer import SPECIAL_TOKENS, VISIBLE_TOKENS, train_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer((render(conversation(Draw(i))) for i in range(200)), 600)


def test_added_tokens_are_single_and_last(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.token_to_id(text) for text in (*SPECIAL_TOKENS, *VISIBLE_TOKENS)]
    assert ids == list(range(590, 600))
    assert tokenizer.encode("a]~b]b").tokens == ["a", "]~b]", "b"]


@pytest.mark.parametrize(
    "text", ["def f(x):\n    return x\n\n\n", "a  b\t\r\n c", "élan ☃ 漢字 🙂", "'tis 1234 = x_y", ""]
)
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_are_single(tokenizer: Tokenizer) -> None:
    assert [t.lstrip("Ġ") for t in tokenizer.encode("12 + 345").tokens if t != "Ġ"] == [*"12", "+", *"345"]


def test_only_assistant_turns_count_fully(tokenizer: Tokenizer) -> None:
    turns = (Turn("user", "ai\nHi"), Turn("assistant", "Yes."), Turn("user", "No"), Turn("assistant", "Ok."))
    text = render(Chat(turns, developer="ai"))
    documents = Encoder(tokenizer).chats([text])

    def said(weight: int) -> str:
        return tokenizer.decode(documents.tokens[documents.weights == weight].tolist(), skip_special_tokens=False)

    assert said(SPOKEN) == "Yes.[e~[Ok.[e~["
    assert said(0) == "</mm:think>"
    assert len(text) == len(said(SPOKEN)) + len(said(0)) + len(said(READ))


def test_rows_begin_with_documents_and_hold_them_once() -> None:
    lengths = [5, 7, 3, 9, 6, 2, 8]
    tokens = np.concatenate([np.arange(100 * i, 100 * i + n) for i, n in enumerate(lengths)]).astype(np.uint16)
    documents = Documents(tokens, np.full(len(tokens), 9, np.uint8), np.cumsum(lengths))

    rows, weights = pack(documents, 11, seed=3)

    assert rows.shape == weights.shape == (len(rows), 12) and (weights == 9).all()
    assert (rows[:, 0] % 100 == 0).all()
    assert len(np.unique(rows)) == rows.size
    with pytest.raises(ValueError, match="do not fill one row of 101"):
        pack(documents, 100, seed=0)


def test_workers_change_nothing(tokenizer: Tokenizer) -> None:
    alone = generated(tokenizer, "functions", 1500, seed=5)
    with worker_pool(1) as pool:
        apart = generated(tokenizer, "functions", 1500, seed=5, pool=pool)
    assert np.array_equal(alone.tokens, apart.tokens) and np.array_equal(alone.ends, apart.ends)


def test_needles_stand_in_library_prose(tokenizer: Tokenizer) -> None:
    filler = prose_paragraphs(reference_topics())
    assert len(filler) > 20
    text = tokenizer.decode(
        generated(tokenizer, "needle", 1, seed=1, filler=filler, longest_chars=4000).tokens.tolist()
    )
    assert len(text) > 500 and text.count(" is ") >= 2


def test_library_is_plain_source(tokenizer: Tokenizer) -> None:
    sources = library_sources()
    assert len(sources) > 200 and all(source.isascii() for source in sources)
    documents = library(tokenizer, sources[:3])
    assert (documents.weights == SPOKEN).all()
    text = tokenizer.decode(documents.tokens.tolist())
    assert text == "".join(sources[:3])
