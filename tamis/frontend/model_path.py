"""From what the user calls a model to the folder that holds it. The one place that knows of the hub."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path

from tamis.config import BUNDLED_MODEL
from tamis.errors import CheckpointError

# What serving needs of a repository. Weights are left out when they will be made up (`--load-format dummy`).
_TEXT_FILES = ["*.json", "*.jinja"]
_WEIGHT_FILES = ["*.safetensors"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def resolve_model(model: str, *, weights: bool = True, param: str = "model") -> Path:
    """The folder of `model`: the bundled model ("nano"), an existing folder, or a hub id, downloaded if need be.

    Args:
        model: name, path or `owner/name`.
        weights: whether tensors are needed too.
        param: the flag to name in errors.

    Raises:
        CheckpointError: in one sentence, when there is no such model or the hub cannot be reached.
    """
    if model == BUNDLED_MODEL:
        return _bundled()
    if not model:
        raise CheckpointError("The model name is empty.", param=param, hint=f"Leave it out for {BUNDLED_MODEL!r}.")
    path = Path(model).expanduser()
    if os.path.isdir(path):  # pathlib's own raises on a name that is too long
        return path.resolve()
    if os.path.exists(path):
        raise CheckpointError(f"{model} is a file, but must be a folder with config.json.", param=param)
    if not _HUB_ID.fullmatch(model):
        raise CheckpointError(
            f"There is no folder {model}.", param=param, hint=f"Name a folder, a hub id or {BUNDLED_MODEL!r}."
        )
    return _download(model, weights, param)


def _bundled() -> Path:
    folder = Path(str(files("tamis").joinpath("nano", "checkpoint")))
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"The bundled model is missing from this installation ({folder}).",
            param="model",
            hint="Install the package again, or name a model folder.",
        )
    return folder


def _download(hub_id: str, weights: bool, param: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    patterns = _TEXT_FILES + (_WEIGHT_FILES if weights else [])
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns))
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"There is no folder {hub_id}, and the hub has no model of that name (or it is private).",
            param=param,
            hint="Check the spelling; for a private one set HF_TOKEN.",
        ) from error
    except LocalEntryNotFoundError as error:
        raise _unreachable(hub_id, param) from error
    except Exception as error:  # network libraries below the hub client raise their own kinds
        raise CheckpointError(
            f"{hub_id} could not be downloaded from the hub: {(str(error).splitlines() or [repr(error)])[0]}",
            param=param,
            hint="Name a local folder instead.",
        ) from error


def _unreachable(hub_id: str, param: str) -> CheckpointError:
    return CheckpointError(
        f"There is no folder {hub_id}, the hub cannot be reached, and its files are not in the local cache.",
        param=param,
        hint="Name a local folder, or go online once to download it.",
    )
