"""Greedy continuations through the engine are the oracle's, chunked prefill and decode included."""

from __future__ import annotations

import pytest
import torch

from tamis.config import EngineConfig
from tamis.engine.core import EngineCore
from tamis.engine.messages import EngineRequest
from tamis.engine.sampling_params import SamplingParams
from tamis.runner import load_engine
from tests.models.oracle import Shape, oracle_model

SHAPES = {
    "group2-top3": (Shape(), 600),
    "group4-top1": (Shape(group=4, topk=1), 383),
    "group16-top2-local2": (Shape(group=16, kv_heads=1, topk=2, local=2), 300),
    "group2-top16": (Shape(topk=16, sparse=(True, True), moe=(False, True)), 2047),
}
NEW_TOKENS = 20


@pytest.mark.parametrize("shape, context", SHAPES.values(), ids=SHAPES)
def test_greedy_continuation_equals_the_oracle(tmp_path, shape, context):
    oracle = oracle_model(shape, seed=context)
    oracle.save_pretrained(tmp_path)
    prompt = torch.randint(0, 97, (context,), generator=torch.Generator().manual_seed(context)).tolist()
    with torch.no_grad():
        want = oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, context),
            max_new_tokens=NEW_TOKENS,
            min_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )[0, context:].tolist()

    config = EngineConfig(model=str(tmp_path), num_blocks_override=64, max_num_batched_tokens=500)
    runner, info = load_engine(config, lambda stage, percent: None)
    engine = EngineCore(config, runner, info)
    sampling = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    engine.add_request(EngineRequest(request_id="r", prompt_token_ids=prompt, sampling=sampling))
    got = []
    while engine.has_unfinished():
        got += [t for delta in engine.step() for t in delta.token_ids]
    engine.shutdown()
    assert len(set(want)) > 3, "the oracle must not repeat one token"
    assert got == want
