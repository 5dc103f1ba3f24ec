"""The text model is the published one: `transformers`' minimax_m3_vl is the oracle, on random small checkpoints."""

from __future__ import annotations

import pytest
import torch

from tests.models.oracle import Shape, as_block_sets, load_ours, oracle_model, oracle_run, our_run

ALL_SPARSE = {"sparse": (True, True), "moe": (False, True)}
SHAPES = {
    "group2-top3": (Shape(), [1, 127, 128, 129, 2049]),
    "group4-top1": (Shape(group=4, topk=1), [129, 700]),
    "group16-top2": (Shape(group=16, kv_heads=1, topk=2), [300]),
    "group16-kv4-top16": (
        Shape(group=16, kv_heads=4, topk=16, head_dim=16, rotary_dim=8, sparse=(True,), moe=(True,)),
        [129, 2049],
    ),
    "group2-top16-5000": (Shape(topk=16, sparse=(False, True), moe=(False, True)), [5000]),
    "group4-top2-local2": (Shape(group=4, topk=2, local=2), [127, 900]),
    "group2-top3-local2": (Shape(topk=3, local=2), [2049]),
    "all-sparse": (Shape(**ALL_SPARSE), [128, 1500]),
    "all-dense-attention": (Shape(sparse=(False, False), moe=(True, False)), [129, 600]),
    "mixed-4-layers": (Shape(sparse=(True, False, True, False), moe=(True, True, False, True)), [650]),
    "full-rotary": (Shape(rotary_dim=32), [400]),
    "one-kv-head": (Shape(group=4, kv_heads=1, topk=3), [1200]),
    "top1-expert": (Shape(experts=3, experts_per_token=1), [400]),
    "all-experts": (Shape(experts=5, experts_per_token=5), [400]),
    "small-limit": (Shape(extra={"swiglu_limit": 0.5, "swiglu_alpha": 1.1, "routed_scaling_factor": 1.3}), [300]),
}
CASES = [
    pytest.param(shape, context, id=f"{name}-{context}")
    for name, (shape, contexts) in SHAPES.items()
    for context in contexts
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Shape → (oracle, our model), each saved and loaded once."""
    made = {}

    def make(shape: Shape):
        key = repr(shape)
        if key not in made:
            oracle = oracle_model(shape, seed=len(made))
            folder = tmp_path_factory.mktemp("checkpoint")
            oracle.save_pretrained(folder)
            made[key] = (oracle, load_ours(folder))
        return made[key]

    return make


@pytest.mark.parametrize("shape, context", CASES)
def test_logits_and_selections_equal_the_oracle(checkpoints, shape, context):
    oracle, ours = checkpoints(shape)
    token_ids = torch.randint(0, 97, (context,), generator=torch.Generator().manual_seed(context)).tolist()
    want, want_sets = oracle_run(oracle, token_ids)
    got, got_sets = our_run(ours, token_ids)
    assert want.std() > 0.1, "the oracle's logits must not be degenerate"
    assert set(got_sets) == set(want_sets) == {i for i, s in enumerate(shape.sparse) if s}
    for layer, want_set in want_sets.items():
        assert torch.equal(as_block_sets(got_sets[layer], want_set.shape[-1]), want_set), f"layer {layer}"
    torch.testing.assert_close(got, want, rtol=0, atol=1e-4)
