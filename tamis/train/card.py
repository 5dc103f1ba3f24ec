"""The model card and the loss plot of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tamis.train.presets import Preset

_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def write_card(model: Path, preset: Preset, run: Path, scores: Path, note: str = "") -> None:
    """Write README.md into the folder that is served.

    Args:
        model: the folder, of any format.
        preset: what was trained.
        run: folder with one folder a phase, each with report.json. A phase that was run more than once has its earlier
            runs in folders <phase>-1, <phase>-2, …
        scores: reports of `tamis bench eval`, one a line (its last line); those with the model's own selection and an
            NVFP4 cache are listed.
        note: what a reader of these scores has to know besides.
    """
    reports = [
        json.loads((folder / "report.json").read_text(encoding="utf-8"))
        for phase in preset.phases
        for folder in (*sorted(run.glob(f"{phase.name}-[0-9]*")), run / phase.name)
    ]
    text = preset.text_config
    phases = "\n".join(_phase_row(preset, report) for report in reports)
    files = [*sorted(model.glob("*.safetensors")), *(model / name for name in _TEXT_FILES if (model / name).exists())]
    sums = "\n".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files)
    versions = reports[-1]["versions"]
    (model / "README.md").write_text(
        f"""---
license: apache-2.0
pipeline_tag: text-generation
---
# Tamis {preset.name}

A language model of M3.1's architecture with {reports[-1]["parameters"]:,} parameters: {text["num_hidden_layers"]} \
layers, all with MiniMax Sparse Attention,
the first with a dense MLP, the others with {text["num_local_experts"]} experts,
{text["num_experts_per_tok"]} a token, and a shared one; hidden size {text["hidden_size"]},
{text["num_attention_heads"]} query and {text["num_key_value_heads"]} KV heads of 128, blocks of 128 tokens, 16 a query.
Stored as M3.1's own checkpoint is: linears in MXFP8, experts in NVFP4, the rest in bf16; trained with these roundings
and with an NVFP4 cache. It shows an engine at work and lets it be scored. It is no source of knowledge.

- Context: {preset.max_length:,} tokens by config, scored up to 64,000.
- Language: simple English, small Python functions.
- Chat template: `chat_template.jinja`, the format of the M3 family, with thinking and tool calls.
- Licence of the weights: Apache-2.0.

## Data
All text was on the machine or made by the training code (`tamis/train`):
- Python {versions["python"]}'s standard library and language reference (PSF licence) and NumPy {versions["numpy"]}'s
  Python sources (BSD-3-Clause), one file in sixteen held out;
- chats, exercises, tool calls, long texts with facts to find and small functions that programs make
  (`tamis/train/chats`, `tamis/train/skills`), one problem in 32 held out.

## Training
| phase | tokens a row | steps | tokens | minutes | device |
|---|---|---|---|---|---|
{phases}

The weights are the mean of those after {" and ".join(preset.averaged)}.

## Scores
{_scores([json.loads(line) for line in scores.read_text(encoding="utf-8").splitlines()])}

The questions come from the generators of the training data, with problems that training never sees: the scores say
what was learnt, not what it is worth elsewhere.{" " + note if note else ""}

## SHA-256
```text
{sums}
```
""",
        encoding="utf-8",
    )


def _phase_row(preset: Preset, report: dict[str, Any]) -> str:
    phase = preset.phase(report["phase"])
    minutes = report["elapsed_s"] / 60
    return (
        f"| {phase.name} | {phase.length:,} | {report['steps']:,} | {report['tokens']:,} | {minutes:.1f} "
        f"| {report['device']} |"
    )


def _scores(reports: list[dict[str, Any]]) -> str:
    shown = [report for report in reports if (report["selection"], report["kv_format"]) == ("model", "nvfp4")]
    rows = "\n".join(
        f"| {name} | {entry['right']} of {entry['total']} | {entry['right'] / entry['total']:.1%} |"
        for report in shown
        for name, entry in report["skills"].items()
    )
    head = (
        f"`tamis bench eval`, greedy, exact match; weights {shown[0]['weights']}, KV cache nvfp4 "
        f"({shown[0]['contract']} contract)."
    )
    return f"{head}\n\n| skill | right | share |\n|---|---|---|\n{rows}"


def plot_losses(logs: Sequence[Path], image: Path) -> None:
    """Loss and index loss over the tokens of a run, from the `log.jsonl` of its phases, in order."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4), dpi=100, layout="constrained")
    curves: dict[str, list[tuple[float, float]]] = {"loss": [], "index_loss": []}
    before = 0
    for log in logs:
        entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        if before:
            axes.axvline(before / 1e6, color="grey", linewidth=0.8, linestyle=":")
        for name, curve in curves.items():
            curve += [((before + entry["tokens"]) / 1e6, entry[name]) for entry in entries]
        before += entries[-1]["tokens"] if entries else 0
    for name, label in (("loss", "next token (weighted), nats"), ("index_loss", "index branch KL, nats")):
        axes.plot(*zip(*curves[name], strict=True), label=label)
    axes.set(xlabel="tokens trained, millions", yscale="log")
    axes.legend()
    figure.savefig(image)
    pyplot.close(figure)
