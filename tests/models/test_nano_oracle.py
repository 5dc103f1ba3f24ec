"""The bundled model is the published function too: real weights, a context on which selection leaves blocks out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from transformers import MiniMaxM3VLForCausalLM
from transformers.models.minimax_m3_vl import MiniMaxM3VLTextConfig

from tamis.frontend.model_path import resolve_model
from tamis.frontend.tokenizer import Tokenizer
from tamis.models.m3 import M3ForCausalLM
from tests.models.oracle import as_block_sets, load_ours, oracle_run, our_run

CONTEXT_TOKENS = 2300


def oracle_of(folder: Path, ours: M3ForCausalLM) -> MiniMaxM3VLForCausalLM:
    text = json.loads((folder / "config.json").read_text())["text_config"]
    rope = {
        "rope_type": "default",
        "rope_theta": text["rope_theta"],
        "partial_rotary_factor": text["rotary_dim"] / text["head_dim"],
    }
    config = MiniMaxM3VLTextConfig(
        **text | {"rope_parameters": rope, "dtype": "float32", "attn_implementation": "eager"}
    )
    model = MiniMaxM3VLForCausalLM(config).eval().requires_grad_(False)
    weights = {}
    for name, value in [*ours.named_parameters(), *ours.named_buffers()]:
        name = re.sub(r"self_attn\.index_([qk])_(proj|norm)", r"self_attn.indexer.\1_\2", name)
        weights[name if name.startswith("lm_head") else f"model.{name}"] = value.float()
    model.load_state_dict(weights, strict=True)
    return model


def test_the_bundled_model_equals_the_oracle():
    folder = resolve_model("nano")
    ours = load_ours(folder)
    text = Path(__file__).parents[2].joinpath("tamis/engine/scheduler.py").read_text()
    token_ids = Tokenizer.from_folder(folder).encode(text)[:CONTEXT_TOKENS]
    assert len(token_ids) == CONTEXT_TOKENS
    want, want_sets = oracle_run(oracle_of(folder, ours), token_ids)
    got, got_sets = our_run(ours, token_ids)
    assert len(want_sets) == 4
    for layer, want_set in want_sets.items():
        assert torch.equal(as_block_sets(got_sets[layer], want_set.shape[-1]), want_set), f"layer {layer}"
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
    assert torch.equal(got.argmax(-1), want.argmax(-1))
