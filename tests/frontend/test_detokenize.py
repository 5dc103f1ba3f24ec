from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from tamis.engine.plan import TokenLogprobs
from tamis.frontend.detokenize import Detokenizer, position_logprobs
from tamis.frontend.tokenizer import Tokenizer


def pieces_of(tokenizer: Tokenizer, ids: list[int], chunk: int = 1, skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    pieces = [detokenizer.push(ids[i : i + chunk]) for i in range(0, len(ids), chunk)]
    return [*pieces, detokenizer.finish()]


@settings(max_examples=100)
@given(data=st.data(), chunk=st.integers(1, 5), skip=st.booleans())
def test_any_ids_in_any_chunks_join_to_the_decoded_whole(
    tokenizer: Tokenizer, data: st.DataObject, chunk: int, skip: bool
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40))
    assert "".join(pieces_of(tokenizer, ids, chunk, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_a_character_of_several_tokens_appears_at_once(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("👍")
    assert len(ids) == 4
    assert pieces_of(tokenizer, ids) == ["", "", "", "👍", ""]


def test_output_that_ends_inside_a_character_is_flushed(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a👍")[:-1]
    assert pieces_of(tokenizer, ids) == ["a", "", "", "", "\ufffd"]


def test_impossible_bytes_are_not_held_back(tokenizer: Tokenizer) -> None:
    ff = next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == b"\xff")
    assert pieces_of(tokenizer, [ff, ff]) == ["\ufffd", "\ufffd", ""]


def test_special_tokens_are_skipped_or_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<mm:think>x")
    assert "".join(pieces_of(tokenizer, ids)) == "x"
    assert "".join(pieces_of(tokenizer, ids, skip=False)) == "<mm:think>x"


@pytest.fixture
def fallback_tokenizer(tmp_path: Path) -> Tokenizer:
    """SentencePiece-like: word pieces, and bytes for the rest."""
    vocab = {f"<0x{b:02X}>": b for b in range(256)} | {"▁hello": 256, "▁world": 257}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer.from_folder(tmp_path)


def test_vocabulary_that_is_not_byte_level_streams_whole_characters(fallback_tokenizer: Tokenizer) -> None:
    ids = [256, 257, *"é".encode(), 257]
    assert not fallback_tokenizer.is_byte_level
    assert pieces_of(fallback_tokenizer, ids) == ["hello", " world", "", "é", " world", ""]


def test_vocabulary_that_is_not_byte_level_gives_up_on_impossible_bytes(fallback_tokenizer: Tokenizer) -> None:
    pieces = pieces_of(fallback_tokenizer, [0xFF] * 20)
    assert "".join(pieces) == "\ufffd" * 20
    assert pieces.index("\ufffd" * 8) == 7


def test_logprobs_carry_text_and_bytes_of_each_token(tokenizer: Tokenizer) -> None:
    first, *_ = tokenizer.encode("é")
    (e,) = tokenizer.encode("e")
    position = position_logprobs(
        tokenizer, first, TokenLogprobs(logprob=-1.5, top_token_ids=[e, first], top_logprobs=[-0.5, -1.5])
    )
    assert (position.chosen.text, position.chosen.data, position.chosen.logprob) == ("\ufffd", b"\xc3", -1.5)
    assert [(t.text, t.data, t.logprob) for t in position.top] == [("e", b"e", -0.5), ("\ufffd", b"\xc3", -1.5)]
