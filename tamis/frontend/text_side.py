"""What the frontend reads of a model: tokenizer, chat template and recommended sampling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.config import EngineConfig
from tamis.frontend.generation_config import sampling_defaults
from tamis.frontend.model_path import resolve_model
from tamis.frontend.template import ChatTemplate
from tamis.frontend.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextSide:
    """Everything about a model that is text.

    Attributes:
        tokenizer: its vocabulary.
        template: its chat format.
        sampling_defaults: `SamplingParams` fields that the checkpoint recommends.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    sampling_defaults: dict[str, Any]


def load_text_side(config: EngineConfig, folder: Path) -> TextSide:
    """Read a model's text side.

    Args:
        config: its `tokenizer` names where vocabulary and template come from, when not from `folder`.
        folder: the model's (see `model_path.resolve_model`); the recommended sampling always comes from it.

    Raises:
        CheckpointError: a tokenizer that is nowhere, or a file that is missing or broken.
    """
    text_folder = folder
    if config.tokenizer is not None:
        text_folder = resolve_model(config.tokenizer, weights=False, param="tokenizer")
    tokenizer = Tokenizer.from_folder(text_folder)
    return TextSide(tokenizer, ChatTemplate.from_folder(text_folder, tokenizer), sampling_defaults(folder))
