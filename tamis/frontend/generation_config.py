"""Sampling defaults that a checkpoint recommends in its generation_config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tamis.engine.sampling_params import SamplingParams
from tamis.errors import CheckpointError, InvalidRequestError
from tamis.frontend.tokenizer import read_json

# What vLLM takes over: file key → SamplingParams field.
_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


# JSON writers may spell these 20.0.
_INTEGERS = frozenset({"top_k", "max_new_tokens"})


def sampling_defaults(folder: Path) -> dict[str, Any]:
    """`SamplingParams` fields set by generation_config.json; empty without the file.

    Raises:
        CheckpointError: when a value is one that no request could ask for.
    """
    path = folder / "generation_config.json"
    values = read_json(path)
    defaults: dict[str, Any] = {}
    for key, field in _FIELDS.items():
        value = values.get(key)
        if value is None:
            continue
        if key in _INTEGERS and isinstance(value, float) and value.is_integer():
            value = int(value)
        recommended: dict[str, Any] = {field: value}
        try:
            SamplingParams(**recommended)
        except InvalidRequestError as error:
            raise CheckpointError(f"{path}: {error}", param=key, hint=f"Correct {key} there, or remove it.") from error
        defaults |= recommended
    return defaults
