"""Tokens and loss weights."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from tamis.train.chats import Chat, Draw, Turn, conversation, render
from tamis.train.corpus import library_sources
from tamis.train.dataset import READ, SPOKEN, Encoder, library
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
    assert set(Encoder(tokenizer).chats([text], read=3).weights.tolist()) == {0, 3, SPOKEN}


def test_library_is_plain_source(tokenizer: Tokenizer) -> None:
    sources = library_sources()
    assert len(sources) > 200 and all(source.isascii() for source in sources)
    documents = library(tokenizer, sources[:3])
    assert (documents.weights == SPOKEN).all()
    text = tokenizer.decode(documents.tokens.tolist())
    assert text == "".join(sources[:3])
