"""The recipe of the bundled checkpoint, from text on this machine to a folder that Tamis serves:

    python -m tamis.train.nano --out DIR [--minutes 8] [--preset nano|toy] [--resume]

Data → tokenizer → training → scores → export. Progress goes to DIR/log.jsonl; the last line printed is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from tamis.train import evaluate
from tamis.train.card import plot_losses, write_card
from tamis.train.chats import Draw, conversation, render
from tamis.train.chats.code import source_text
from tamis.train.corpus import library_sources, prose_paragraphs, reference_topics
from tamis.train.dataset import Documents, generated, library, pack, worker_pool
from tamis.train.export import export, round_to_bfloat16
from tamis.train.loop import Rows, initial_state, train
from tamis.train.presets import PRESETS, Preset
from tamis.train.tokenizer import train_tokenizer

# Shares of generated text in what the tokenizer sees.
_TOKENIZER_CHATS = 12_000
_NEEDLES_START, _FUNCTIONS_START = 100_000_000, 800_000_000


def build_data(
    preset: Preset, folder: Path, *, workers: int, seed: int
) -> tuple[Tokenizer, list[Rows], dict[str, Any]]:
    """The tokenizer (kept in `folder` for `--resume`), rows of each phase, token counts for the card."""
    sources, topics = library_sources()[: preset.library_files], reference_topics()[: preset.library_files]
    filler = prose_paragraphs(reference_topics())
    path = folder / "tokenizer.json"
    if path.exists():
        tokenizer = Tokenizer.from_file(str(path))
    else:
        chats = [render(conversation(Draw(seed + i))) for i in range(min(_TOKENIZER_CHATS, preset.num_chats))]
        functions = [source_text(Draw(seed + i)) for i in range(min(_TOKENIZER_CHATS // 2, preset.num_functions))]
        tokenizer = train_tokenizer([*chats, *functions, *sources, *topics], preset.text_config["vocab_size"])
        tokenizer.save(str(path))
    books = library(tokenizer, [*sources, *topics])
    with worker_pool(workers) if workers > 1 else nullcontext() as pool:
        made = [
            generated(tokenizer, "chat", preset.num_chats, seed=seed, pool=pool),
            generated(tokenizer, "functions", preset.num_functions, seed=seed + _FUNCTIONS_START, pool=pool),
        ]
        needles = [
            generated(
                tokenizer,
                "needle",
                phase.num_needles,
                seed=seed + _NEEDLES_START * (number + 1),
                filler=filler,
                longest_chars=phase.needle_chars,
                pool=pool,
            )
            for number, phase in enumerate(preset.phases)
        ]
    rows = []
    for number, (phase, found) in enumerate(zip(preset.phases, needles, strict=True)):
        others = Documents.join([part.share(phase.share) for part in (books.repeat(preset.library_repeats), *made)])
        rows.append(pack(Documents.join([others, found]), phase.length, seed=seed + number))
    counts: dict[str, Any] = {
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "library_tokens": len(books.tokens),
        "generated_tokens": sum(len(part.tokens) for part in (*made, *needles)),
    }
    return tokenizer, rows, counts


def run(
    preset: Preset,
    folder: Path,
    *,
    minutes: float,
    seed: int,
    resume: bool,
    workers: int,
    compile_layers: bool,
    max_steps: int | None,
    questions: int,
) -> dict[str, Any]:
    """Everything; returns the report that `report.json` holds."""
    folder.mkdir(parents=True, exist_ok=True)
    if not resume:
        for name in ("state.pt", "tokenizer.json", "log.jsonl"):
            (folder / name).unlink(missing_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()
    tokenizer, rows, counts = build_data(preset, folder, workers=workers, seed=seed)
    print(
        json.dumps({"data_s": round(time.monotonic() - started, 1), **counts, "rows": [len(r[0]) for r in rows]}),
        flush=True,
    )
    state = initial_state(preset, device, seed=seed)
    if resume and (folder / "state.pt").exists():
        state.load(folder / "state.pt")
    train(
        state, preset, rows, folder, limit_s=60 * minutes, seed=seed, compile_layers=compile_layers, max_steps=max_steps
    )
    if compile_layers:
        # Scores run in fp32 and in many shapes: not worth compiling.
        fresh = initial_state(preset, device, seed=seed)
        fresh.model.load_state_dict(state.model.state_dict())
        state.model = fresh.model
    model = state.model.eval()
    round_to_bfloat16(model)
    checkpoint = folder / "checkpoint"
    digests = export(model, tokenizer, preset, checkpoint)
    filler = prose_paragraphs(reference_topics())
    skills = [
        *evaluate.SKILLS,
        *(evaluate.needle_skill(filler, chars) for chars in [p.needle_chars for p in preset.phases]),
    ]
    report: dict[str, Any] = {
        "preset": preset.name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "steps": state.step,
        "tokens": _tokens_of(folder / "log.jsonl", preset),
        "elapsed_s": round(state.elapsed_s, 1),
        "data": counts,
        "held_out_loss": round(
            evaluate.held_out_loss(model, tokenizer, count=20 * questions, length=preset.phases[0].length), 4
        ),
        "scores": {
            # Long prompts are dear: a quarter of the questions.
            skill.name: evaluate.score(
                model,
                tokenizer,
                skill,
                count=questions if skill in evaluate.SKILLS else -(-questions // 4),
                max_tokens=preset.answer_tokens,
            )
            for skill in skills
        },
        "sha256": digests,
        "samples": evaluate.samples(model, tokenizer, max_tokens=preset.answer_tokens),
    }
    write_card(checkpoint, preset, report)
    plot_losses(folder / "log.jsonl", folder / "loss.png")
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _tokens_of(log: Path, preset: Preset) -> int:
    """Trained tokens, from the steps of each phase in the log."""
    total = previous = 0
    for line in log.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        phase = preset.phases[entry["phase"]]
        total += (entry["step"] - previous) * phase.rows * phase.length
        previous = entry["step"]
    return total


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tamis.train.nano", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the log, the state and checkpoint/")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="nano")
    parser.add_argument("--minutes", type=float, default=8.0, help="training ends by then; data and scores come on top")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true", help="continue from DIR/state.pt")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that make data")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=torch.cuda.is_available(),
        help="compile the layers: half a minute, then three times as fast (default: on a GPU)",
    )
    parser.add_argument("--max-steps", type=int, help="stop after so many steps")
    parser.add_argument("--questions", type=int, default=200, help="questions a skill")
    args = parser.parse_args()
    report = run(
        PRESETS[args.preset],
        args.out,
        minutes=args.minutes,
        seed=args.seed,
        resume=args.resume,
        workers=args.workers,
        compile_layers=args.compile,
        max_steps=args.max_steps,
        questions=args.questions,
    )
    print(
        json.dumps(
            {key: report[key] for key in ("parameters", "steps", "tokens", "elapsed_s", "held_out_loss", "scores")}
        )
    )


if __name__ == "__main__":
    main()
