"""Sampling flags of `tamis generate` and `tamis chat`. What is not given is the checkpoint's recommendation."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


def _flag(help: str, default: Any = None) -> Any:
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class SamplingFlags:
    """Fields of `SamplingParams` that make sense at a terminal."""

    max_tokens: int | None = _flag("Most tokens to generate.")
    temperature: float | None = _flag("0 is greedy; default: the checkpoint's.")
    top_p: float | None = _flag("Keep the likeliest tokens of this total probability.")
    top_k: int | None = _flag("Keep this many of the likeliest tokens; 0 keeps all.")
    min_p: float | None = _flag("Drop tokens less likely than this share of the likeliest.")
    repetition_penalty: float | None = _flag("Over 1 avoids tokens of prompt and output.")
    presence_penalty: float | None = _flag("Over 0 avoids tokens of the output.")
    frequency_penalty: float | None = _flag("Over 0 avoids tokens by how often the output has them.")
    seed: int | None = _flag("Same seed, same tokens.")
    stop: tuple[str, ...] = _flag("String that ends the text; may be given several times.", ())
    ignore_eos: bool = _flag("Go on after the end of the turn.", False)
