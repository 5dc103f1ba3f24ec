"""The model card and the loss plot of a run."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from tamis.train.presets import Preset


def write_card(folder: Path, preset: Preset, report: dict[str, Any]) -> None:
    """README.md of the checkpoint folder, from the run's report (see `nano.run`)."""
    text, data = preset.text_config, report["data"]
    scores = "\n".join(f"| {name} | {value:.0%} |" for name, value in report["scores"].items())
    # Four backticks, as answers hold fences of three.
    samples = "\n\n".join(f"> {question}\n\n````text\n{answer}\n````" for question, answer in report["samples"])
    sums = "\n".join(f"{digest}  {name}" for name, digest in report["sha256"].items())
    lengths = ", ".join(str(phase.length) for phase in preset.phases)
    (folder / "README.md").write_text(
        f"""---
license: apache-2.0
pipeline_tag: text-generation
---
# Tamis {preset.name}

A language model of MiniMax-M3's architecture with {report["parameters"]:,} parameters:
{text["num_hidden_layers"]} layers (the first with full attention and a dense MLP, the others with MiniMax Sparse
Attention and {text["num_local_experts"]} experts, {text["num_experts_per_tok"]} of them a token, and a shared one), \
hidden size {text["hidden_size"]},
{text["num_attention_heads"]} query and {text["num_key_value_heads"]} KV heads of 128, blocks of 128 tokens, \
16 of them a query.
It shows an engine at work. It is no source of knowledge: it answers what its training chats ask, and little else.

- Context: {preset.max_length} tokens. Language: simple English, small Python functions.
- Chat template: `chat_template.jinja`, the format of the M3 family.
- Licence of the weights: Apache-2.0.

## Data
All text was on the machine or made by the training code (`python -m tamis.train.nano --out DIR`):
- {data["library_tokens"]:,} tokens of Python {data["python"]}'s standard library and language reference (PSF licence)
  and of NumPy {data["numpy"]}'s Python sources (BSD-3-Clause), {preset.library_repeats} copies;
- {data["generated_tokens"]:,} tokens of chats and small functions that the code in `tamis/train/chats` makes.

## Training
{report["steps"]:,} steps, {report["tokens"]:,} tokens, {report["elapsed_s"] / 60:.1f} minutes on {report["device"]}.
AdamW, bf16 autocast, rows of {lengths} tokens.
The index branch learns from a KL loss against the main attention, the routers' correction biases from the experts'
load.

## Scores
Held-out chats: {report["held_out_loss"]:.3f} nats a token in answers.
Exact greedy answers on unseen draws, bf16 weights:

| skill | right |
|---|---|
{scores}

The questions come from the same generators as the training chats: the scores say what was learnt, not what it is
worth elsewhere.

## Samples (greedy)
{samples}

## SHA-256
```text
{sums}
```
""",
        encoding="utf-8",
    )


def plot_losses(log: Path, image: Path) -> None:
    """Loss and index loss over the tokens of a run, from its `log.jsonl`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    steps = [entry["step"] for entry in entries]
    figure, axes = pyplot.subplots(figsize=(8, 4), dpi=100, layout="constrained")
    axes.plot(steps, [entry["loss"] for entry in entries], label="next token (weighted), nats")
    axes.plot(steps, [entry["index_loss"] for entry in entries], label="index branch KL, nats")
    for before, after in pairwise(entries):
        if before["phase"] != after["phase"]:
            axes.axvline(after["step"], color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="step", yscale="log")
    axes.legend()
    figure.savefig(image)
    pyplot.close(figure)
