"""The recipe of the bundled model, one command a phase, from text on this machine to a folder that Tamis serves:

    python -m tamis.train.nano tokenizer --out DIR            learn the vocabulary
    python -m tamis.train.nano short --out DIR                train; then the phases after it, in the order of presets
    python -m tamis.train.nano mean --out DIR                 DIR/mean: the mean of the phases that the preset names
    python -m tamis.train.nano card --out DIR --model FOLDER  write FOLDER/README.md from the logs and a bench report

A phase starts from the weights of the phase before (or `--from FOLDER`) and writes DIR/<phase>/: the bf16 checkpoint,
log.jsonl, loss.png, report.json. The last line printed is one JSON object. `tamis quantize` makes the M3.1 folder of
it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tamis.errors import CheckpointError, ConfigError, TamisError
from tamis.models.m3 import M3ForCausalLM
from tamis.train.card import plot_losses, write_card
from tamis.train.corpus import library_sources, prose_paragraphs, reference_topics
from tamis.train.evaluate import quick_scores
from tamis.train.export import average, export, load_master
from tamis.train.loop import TrainState, initial_state, set_quantized, train_phase
from tamis.train.presets import PRESETS, Phase, Preset
from tamis.train.rows import RowStream, tokenizer_texts
from tamis.train.skills import needle_filler
from tamis.train.tokenizer import train_tokenizer


def make_tokenizer(preset: Preset, folder: Path, *, seed: int = 0) -> Tokenizer:
    """Learn the vocabulary and write DIR/tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(tokenizer_texts(preset, seed), preset.text_config["vocab_size"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def run_phases(
    preset: Preset,
    names: list[str],
    folder: Path,
    *,
    start: Path | None = None,
    minutes: list[float] | None = None,
    seed: int = 0,
    workers: int = 0,
    compile_layers: bool = False,
    max_steps: int | None = None,
    items: int = 200,
) -> dict[str, dict[str, Any]]:
    """Train phases in one process, each with its own folder.

    Args:
        start: folder with the weights to start from; by default those of the phase before the first, if there is one.
        minutes: one number a phase, in place of the preset's.
        workers: processes that make rows; 0 makes them in this one.
        items: held-out questions a skill for the quick scores after each phase; 0 leaves them out.

    Returns:
        The report of each phase, as written to its report.json.
    """
    phases = [preset.phase(name) for name in names]
    if minutes is not None and (len(minutes) != len(names) or not all(0 < m < math.inf for m in minutes)):
        raise ConfigError(
            f"--minutes is {' '.join(map(str, minutes))}, but must be a number over 0 for each of {len(names)} phases.",
            param="minutes",
        )
    for flag, value in (("workers", workers), ("items", items), ("max-steps", max_steps or 0), ("seed", seed)):
        if not 0 <= value < 2**32:
            raise ConfigError(f"--{flag} is {value}, but must be 0 to {2**32 - 1}.", param=flag)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    path = folder / "tokenizer.json"
    tokenizer = _read_tokenizer(path, preset) if path.exists() else make_tokenizer(preset, folder)
    state = initial_state(preset, device, seed=seed)
    before = start or _folder_before(preset, phases[0], folder)
    if before is not None:
        load_master(state.model, before)
    reports = {}
    with RowStream(tokenizer, preset, workers=workers, seed=seed) as stream:
        for phase, limit in zip(phases, minutes or [phase.minutes for phase in phases], strict=True):
            reports[phase.name] = _run_phase(
                state,
                preset,
                phase,
                folder,
                tokenizer,
                stream,
                minutes=limit,
                seed=seed,
                compile_layers=compile_layers,
                max_steps=max_steps,
                items=items,
            )
    return reports


def _run_phase(
    state: TrainState,
    preset: Preset,
    phase: Phase,
    folder: Path,
    tokenizer: Tokenizer,
    stream: RowStream,
    *,
    minutes: float,
    seed: int,
    compile_layers: bool,
    max_steps: int | None,
    items: int,
) -> dict[str, Any]:
    out = folder / phase.name
    out.mkdir(parents=True, exist_ok=True)
    log = out / "log.jsonl"
    log.unlink(missing_ok=True)
    trained = train_phase(
        state,
        preset,
        phase,
        stream.batches(phase),
        log,
        minutes=minutes,
        seed=seed,
        compile_layers=compile_layers,
        max_steps=max_steps,
    )
    export(state.model, tokenizer, preset, out)
    device = next(state.model.parameters()).device
    started = time.monotonic()
    report: dict[str, Any] = {
        "preset": preset.name,
        "phase": phase.name,
        "parameters": sum(p.numel() for p in state.model.parameters()),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy")}},
        **trained,
    }
    if items:
        filler = needle_filler(prose_paragraphs(reference_topics()), library_sources()[: preset.library_files])
        lengths = [n for n in (1024, 8192, 32_768) if n <= phase.length]
        report["quick_scores"] = quick_scores(
            _copy(state.model, preset, phase, device),
            tokenizer,
            filler,
            items=items,
            lengths=lengths,
            nvfp4_cache=phase.quantized,
        )
        report["quick_scores_s"] = round(time.monotonic() - started, 1)
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if log.exists() and log.stat().st_size:
        plot_losses([log], out / "loss.png")
    print(json.dumps(report), flush=True)
    return report


def _copy(model: M3ForCausalLM, preset: Preset, phase: Phase, device: torch.device) -> M3ForCausalLM:
    """The same model without compiled layers: scores come in many shapes, each of which would be compiled."""
    fresh = initial_state(preset, device, seed=0).model
    fresh.load_state_dict(model.state_dict())
    if phase.quantized:
        set_quantized(fresh)
    return fresh


def _folder_before(preset: Preset, phase: Phase, folder: Path) -> Path | None:
    """Folder of the phase before; None for the first.

    Raises:
        CheckpointError: it has no weights yet.
    """
    place = preset.phases.index(phase)
    if place == 0:
        return None
    before = folder / preset.phases[place - 1].name
    if not (before / "model.safetensors.index.json").exists():
        raise CheckpointError(
            f"{before} has no weights.",
            param="from",
            hint=f"train {before.name!r} first, or name a folder with --from.",
        )
    return before


def _read_tokenizer(path: Path, preset: Preset) -> Tokenizer:
    """The vocabulary that is there.

    Raises:
        CheckpointError: it cannot be read, or has more tokens than the preset's model.
    """
    hint = "Learn it anew: python -m tamis.train.nano tokenizer."
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers knows no other kind
        raise CheckpointError(f"{path} cannot be read: {error}.", hint=hint) from error
    most = preset.text_config["vocab_size"]
    if tokenizer.get_vocab_size() > most:
        raise CheckpointError(
            f"{path} has {tokenizer.get_vocab_size()} tokens, but the preset {preset.name} has {most}.", hint=hint
        )
    return tokenizer


def main() -> int:
    """The command line; an error is one sentence on stderr."""
    try:
        _run()
    except TamisError as error:
        print(f"error: {error.sentence()}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # --out, --model or --scores: its text names the file
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: a phase that was not finished starts anew", file=sys.stderr)
        return 130
    return 0


def _run() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tamis.train.nano", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted({phase.name for preset in PRESETS.values() for phase in preset.phases})
    parser.add_argument(
        "command", nargs="+", choices=["tokenizer", "mean", "card", *names], help="one command, or some phases"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of tokenizer.json and one folder a phase")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="nano")
    parser.add_argument("--from", dest="start", type=Path, help="folder with the weights to start from")
    parser.add_argument("--minutes", type=float, nargs="+", help="one number a phase, in place of the preset's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=max(0, (os.cpu_count() or 1) - 1), help="processes making rows")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=torch.cuda.is_available(),
        help="compile the layers: half a minute, then three times as fast (default: on a GPU)",
    )
    parser.add_argument("--max-steps", type=int, help="stop each phase after so many steps")
    parser.add_argument("--items", type=int, help="questions a skill for the quick scores; 0: none")
    parser.add_argument("--model", type=Path, help="with card: the folder that is served")
    parser.add_argument("--scores", type=Path, help="with card: reports of tamis bench eval, one a line")
    parser.add_argument("--note", default="", help="with card: what a reader of the scores has to know besides")
    args = parser.parse_args()
    preset = PRESETS[args.preset]
    if args.command == ["tokenizer"]:
        made = make_tokenizer(preset, args.out, seed=args.seed)
        print(json.dumps({"vocabulary": made.get_vocab_size()}))
    elif args.command == ["mean"]:
        average([args.out / name for name in preset.averaged], args.out / "mean")
        print(json.dumps({"mean": list(preset.averaged), "folder": str(args.out / "mean")}))
    elif args.command == ["card"]:
        if args.model is None or args.scores is None:
            parser.error("card needs --model and --scores")
        write_card(args.model, preset, args.out, args.scores, args.note)
    elif set(args.command) & {"tokenizer", "mean", "card"}:
        parser.error("tokenizer, mean and card stand alone")
    else:
        run_phases(
            preset,
            args.command,
            args.out,
            start=args.start,
            minutes=args.minutes,
            seed=args.seed,
            workers=args.workers,
            compile_layers=args.compile,
            max_steps=args.max_steps,
            items=preset.quick_items if args.items is None else args.items,
        )


if __name__ == "__main__":
    sys.exit(main())
