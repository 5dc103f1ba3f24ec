"""The bundled model is the published function: `transformers` loads its bf16 export and computes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, MiniMaxM3SparseForConditionalGeneration

from tamis.engine.sampling_params import SamplingParams
from tamis.frontend.llm import LLM
from tamis.frontend.model_path import resolve_model
from tamis.frontend.tokenizer import Tokenizer
from tamis.runner.convert import convert
from tests.models.oracle import as_block_sets, load_ours, oracle_run, our_run

CONTEXT_TOKENS = 2300
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nano") / "bf16"
    convert(resolve_model("nano"), folder, "bf16", progress=lambda *progress: None)
    return folder


@pytest.fixture(scope="module")
def theirs(export: Path) -> MiniMaxM3SparseForConditionalGeneration:
    config = AutoConfig.from_pretrained(export)
    # The checkpoint has no pictures; without this a tower of 600 M random parameters would be made for them.
    config.vision_config.update(
        {"num_attention_heads": 2, "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}
    )
    model, found = MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        export, config=config, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not found["unexpected_keys"] and not found["mismatched_keys"]
    assert all("vision_tower" in name or "multi_modal" in name for name in found["missing_keys"])
    return model.eval().requires_grad_(False)


def prompt(folder: Path, count: int) -> list[int]:
    """Source code of this project, in tokens."""
    text = Path(__file__).parents[2].joinpath("tamis/engine/scheduler.py").read_text()
    token_ids = Tokenizer.from_folder(folder).encode(text)[:count]
    assert len(token_ids) == count
    return token_ids


def test_logits_and_selections_equal_the_oracle(export: Path, theirs: MiniMaxM3SparseForConditionalGeneration) -> None:
    token_ids = prompt(export, CONTEXT_TOKENS)
    want, want_sets = oracle_run(theirs, token_ids)
    got, got_sets = our_run(load_ours(export), token_ids)
    assert len(want_sets) == 6
    for layer, want_set in want_sets.items():
        assert torch.equal(as_block_sets(got_sets[layer], want_set.shape[-1]), want_set), f"layer {layer}"
    torch.testing.assert_close(got, want, rtol=0, atol=2e-4)
    assert torch.equal(got.argmax(-1), want.argmax(-1))


@pytest.mark.parametrize(
    "question", ["Who are you?", "Sort these numbers: 42, 7, 19, 3", "Write a Python function that adds two numbers."]
)
def test_greedy_tokens_equal_the_oracle(
    export: Path, theirs: MiniMaxM3SparseForConditionalGeneration, question: str
) -> None:
    with LLM(model=str(export), kv_cache_dtype="float32", max_model_len=1024, num_blocks_override=16) as llm:
        pieces = llm.template.render_pieces([{"role": "user", "content": question}])
        ids = llm.tokenizer.encode_pieces(pieces)
        got = llm.generate([ids], SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS))[0].outputs[0].token_ids
    # [e~[ ends turns inside the prompt as well as pads: without a mask of ones they would be taken for padding.
    prompt_ids = torch.tensor([ids])
    want = theirs.generate(
        prompt_ids, attention_mask=torch.ones_like(prompt_ids), max_new_tokens=NEW_TOKENS, do_sample=False
    )[0, len(ids) :].tolist()
    assert len(got) >= 8
    assert want[: len(got)] == got
