"""Text to token ids and back, over the `tokenizer.json` of a model folder.

Two kinds of text come in. Text that a template wrote, and the text of /v1/completions, is encoded with special
tokens parsed (`]~b]user` becomes a marker), as vLLM does. Message content from users is data: the template hands it
over in pieces cut inside every marker it holds (`frontend.markers`), so that it can never become one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders

from tamis.errors import CheckpointError, InvalidRequestError

# Placeholders that stand for media in a prompt. A model must never say them: nothing would be behind them.
MEDIA_TOKENS = ("]<]image[>[", "]<]video[>[", "]<]start of image[>[", "]<]end of image[>[")
END_OF_TURN = "[e~["


class Tokenizer:
    """A model's vocabulary. Immutable once built, and safe to use from several threads at once.

    Attributes:
        folder: where it came from.
        eos_token_ids: end-of-turn tokens: those of generation_config.json and tokenizer_config.json, else of
            config.json, else `[e~[`; ascending. Empty when the folder names none.
        added_tokens: text → id of every token outside the BPE merges (markers, media and tool tokens).
        special_ids: ids left out of text when special tokens are skipped.
        named_tokens: bos_token, eos_token and the like of tokenizer_config.json, for the chat template.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, *, folder: Path, eos_token_ids: Iterable[int], named_tokens: dict[str, str]
    ) -> None:
        # What is saved with a tokenizer for its training would cut or fill prompts without a word.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.folder = folder
        self.eos_token_ids = sorted(set(eos_token_ids))
        self.named_tokens = named_tokens
        added = backend.get_added_tokens_decoder()
        self.added_tokens = {token.content: token_id for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.is_byte_level = _is_byte_level(backend.decoder)
        self._bytes_cache: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Load tokenizer.json and what belongs to it.

        Raises:
            CheckpointError: when a file is missing or cannot be read, in one sentence.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(
                f"{folder} has no tokenizer.json.", param="tokenizer", hint="Name another folder with --tokenizer."
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the bindings raise bare Exception for every malformed file
            raise CheckpointError(f"{path} cannot be read: {_first_line(error)}", param="tokenizer") from error
        settings = read_json(folder / "tokenizer_config.json")
        named = {
            name: text
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
            if (text := _token_text(settings.get(name))) is not None
        }
        return cls(backend, folder=folder, eos_token_ids=_eos_ids(folder, backend, named), named_tokens=named)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id (added tokens may leave gaps)."""
        return max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def max_token_chars(self) -> int | None:
        """No token stands for more characters of input than this; None where a normalizer may shorten the input."""
        if self._backend.normalizer is not None:
            return None
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    @cached_property
    def forbidden_ids(self) -> list[int]:
        """Media placeholders of this vocabulary, which must never be sampled."""
        return [self.added_tokens[text] for text in MEDIA_TOKENS if text in self.added_tokens]

    def check_fits(self, vocab_size: int) -> None:
        """Refuse a model that has no embedding for some of the tokens.

        Raises:
            CheckpointError: naming both sizes.
        """
        if self.vocab_size > vocab_size:
            raise CheckpointError(
                f"The tokenizer in {self.folder} has {self.vocab_size} tokens, but the model only {vocab_size}.",
                param="tokenizer",
                hint="Use the tokenizer that belongs to the model.",
            )

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`, markers in it parsed.

        Args:
            text: any length.
            add_special_tokens: also what the tokenizer's post-processor puts around a prompt (a begin token, say).

        Raises:
            InvalidRequestError: for a lone surrogate, which no encoding of Unicode can hold.
        """
        try:
            # The batch call lets other threads run meanwhile, and is twice as fast as `encode`.
            return self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            at = next((i for i, c in enumerate(text) if "\ud800" <= c <= "\udfff"), None)
            if at is None:
                raise
            raise InvalidRequestError(
                f"The text holds the lone surrogate {text[at]!r} at character {at}, which is not valid Unicode.",
                param="prompt",
                hint="Send well-formed UTF-8.",
            ) from error

    def encode_pieces(self, pieces: Sequence[str]) -> list[int]:
        """Token ids of consecutive pieces; no token spans two of them."""
        return [token_id for piece in pieces for token_id in self.encode(piece)]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for, which may be part of a character; empty for an id outside the vocabulary."""
        cached = self._bytes_cache.get(token_id)
        if cached is None:
            cached = self._bytes_cache[token_id] = self._token_bytes(token_id)
        return cached

    def _token_bytes(self, token_id: int) -> bytes:
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        if not self.is_byte_level:
            return self._backend.decode([token_id], skip_special_tokens=False).encode()
        try:
            return bytes(_BYTE_OF_CHAR[c] for c in piece)
        except KeyError:  # an added token in plain text
            return piece.encode()

    def new_decode_stream(self, *, skip_special_tokens: bool) -> DecodeStream:
        """A stepwise decoder for vocabularies that are not byte-level."""
        return DecodeStream(self._backend, skip_special_tokens)


class DecodeStream:
    """`tokenizers`' stepwise decoder, with a bound on what it holds back.

    The library waits for as long as the text ends in U+FFFD; a model that says bytes that are never UTF-8 would
    make it decode an ever longer tail.
    """

    # More tokens than any character has bytes.
    MAX_PENDING_TOKENS = 8

    def __init__(self, backend: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._skip = skip_special_tokens
        self._stream = decoders.DecodeStream(skip_special_tokens=skip_special_tokens)
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Text that `token_id` completes, often empty."""
        self._pending.append(token_id)
        text = self._stream.step(self._backend, token_id)
        if text is not None:
            self._pending.clear()
            return text
        return self.finish() if len(self._pending) >= self.MAX_PENDING_TOKENS else ""

    def finish(self) -> str:
        """What is held back."""
        if not self._pending:
            return ""
        text = self._backend.decode(self._pending, skip_special_tokens=self._skip)
        self._pending = []
        self._stream = decoders.DecodeStream(skip_special_tokens=self._skip)
        return text


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty when there is no such file.

    Raises:
        CheckpointError: when the file is no JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {_first_line(error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, but must hold an object.")
    return value


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, named: dict[str, str]) -> list[int]:
    ids = _as_ids(read_json(folder / "generation_config.json").get("eos_token_id"))
    if "eos_token" in named:
        ids += _known(backend, named["eos_token"])
    if not ids:
        config = read_json(folder / "config.json")
        text_config = config.get("text_config")
        ids = _as_ids(config.get("eos_token_id"))
        if not ids and isinstance(text_config, dict):
            ids = _as_ids(text_config.get("eos_token_id"))
    return ids or _known(backend, END_OF_TURN)


def _as_ids(value: object) -> list[int]:
    if isinstance(value, list):
        return [v for v in value if isinstance(v, int)]
    return [value] if isinstance(value, int) else []


def _known(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    token_id = backend.token_to_id(text)
    return [] if token_id is None else [token_id]


def _token_text(value: object) -> str | None:
    """tokenizer_config.json writes a token as text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _is_byte_level(decoder: Any) -> bool:
    if decoder is None:
        return False
    state = json.loads(decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return [step["type"] for step in steps] == ["ByteLevel"]


def _byte_of_char() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTE_OF_CHAR = _byte_of_char()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
