"""Native sparse attention: the reference's function in every format and path, and a token's bits are its own."""

from __future__ import annotations

import os

import pytest
import torch

from tamis.kernels import cpu_extension
from tamis.kernels.lane import Lane
from tamis.kernels.sparse_attention import native
from tamis.kernels.sparse_attention import reference as sparse_reference
from tests.kernels.test_attention_kernels import close, filled_lanes, last_positions, random_selection

EXTENSION = cpu_extension.load()
PATHS = [path for path, usable in EXTENSION.build.get("paths", {}).items() if usable]
VARIANTS = [("float32", "exact"), ("bfloat16", "exact"), ("fp8", "exact"), ("nvfp4", "exact"), ("nvfp4", "e4m3")]
VARIANT_IDS = [" ".join(variant) for variant in VARIANTS]

pytestmark = pytest.mark.skipif(EXTENSION.module is None, reason=EXTENSION.reason)


def case(variant: tuple[str, str], context: int, queries: int, group: int = 2, heads: int = 2, dim: int = 32) -> list:
    k_lane, v_lane, table, generator = filled_lanes(variant[0], context, heads, dim, context, contract=variant[1])
    positions = last_positions(context, queries)
    q = torch.randn(len(positions), heads * group, dim, generator=generator)
    selection = random_selection(positions, heads, 3, generator)
    return [q, k_lane, v_lane, selection, table.expand(len(positions), -1), positions, 0.2]


def of_tokens(args: list, tokens: slice) -> list:
    q, k_lane, v_lane, selection, tables, positions, scale = args
    return [q[tokens], k_lane, v_lane, selection[tokens], tables[tokens], positions[tokens], scale]


def pooled(lane: Lane) -> Lane:
    """The same lane as views into wider rows of a pool, heads and blocks apart."""

    def spread(x: torch.Tensor) -> torch.Tensor:
        raw = x.contiguous().view(torch.uint8).flatten(1)
        pool = torch.full((len(raw), raw.shape[1] + 48), 0xFF, dtype=torch.uint8)
        pool[:, 32:-16] = raw
        return pool[:, 32:-16].view(x.dtype).unflatten(1, x.shape[1:])

    return Lane(lane.format, spread(lane.codes), None if lane.scales is None else spread(lane.scales), lane.contract)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("variant", VARIANTS, ids=VARIANT_IDS)
@pytest.mark.parametrize("context", [1, 63, 127, 129, 1000])
@pytest.mark.parametrize("queries", [1, 7])
def test_matches_the_reference(variant, path, context, queries):
    args = case(variant, context, queries)
    close(native.sparse_attention(*args, path=path), sparse_reference.sparse_attention(*args))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 16])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dim", [16, 48, 128, 256])
def test_matches_the_reference_in_every_shape(path, group, heads, dim):
    args = case(("bfloat16", "exact"), 300, 5, group, heads, dim)
    close(native.sparse_attention(*args, path=path), sparse_reference.sparse_attention(*args))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("variant", VARIANTS, ids=VARIANT_IDS)
def test_views_into_a_pool_give_the_same_bits(variant, path):
    args = case(variant, 300, 7)
    dense = native.sparse_attention(*args, path=path)
    args[1], args[2] = pooled(args[1]), pooled(args[2])
    assert torch.equal(native.sparse_attention(*args, path=path), dense)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("group", [1, 3, 16])
def test_a_token_has_the_same_bits_alone_in_chunks_and_on_any_number_of_threads(path, group):
    args = case(("nvfp4", "exact"), 1000, 300, group)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        whole = native.sparse_attention(*args, path=path)
        torch.set_num_threads(3)
        assert torch.equal(native.sparse_attention(*args, path=path), whole)
    finally:
        torch.set_num_threads(threads)
    for size in (1, 37):
        parts = [
            native.sparse_attention(*of_tokens(args, slice(at, at + size)), path=path) for at in range(0, 300, size)
        ]
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("path", PATHS)
def test_requests_with_other_tables_in_one_call_do_not_mix(path):
    args = case(("float32", "exact"), 600, 64)
    alone = native.sparse_attention(*args, path=path)
    other = of_tokens(args, slice(0, 64))
    generator = torch.Generator().manual_seed(3)
    # The second request has the same selection and positions on other blocks of the pool.
    order = torch.randperm(len(args[1].codes), generator=generator)
    inverse = torch.argsort(order)
    both_k = Lane("float32", torch.cat([args[1].codes, args[1].codes[order]]))
    both_v = Lane("float32", torch.cat([args[2].codes, args[2].codes[order]]))
    tables = torch.cat([args[4], inverse[other[4]] + len(order)])
    joined = [
        args[0].repeat(2, 1, 1), both_k, both_v, args[3].repeat(2, 1, 1), tables, args[5].repeat(2), args[6]
    ]  # fmt: skip
    shuffled = torch.randperm(128, generator=generator)
    mixed = [x[shuffled] if isinstance(x, torch.Tensor) else x for x in joined]
    got = native.sparse_attention(*mixed, path=path)
    assert torch.equal(got, torch.cat([alone, alone])[shuffled])


@pytest.mark.parametrize("path", PATHS)
def test_scores_far_apart_neither_overflow_nor_vanish(path):
    args = case(("float32", "exact"), 600, 7)
    args[6] = 300.0
    close(native.sparse_attention(*args, path=path), sparse_reference.sparse_attention(*args), tolerance=1e-3)


def test_a_nan_in_a_visible_key_is_seen_and_a_query_without_it_is_not():
    args = case(("float32", "exact"), 100, 2)
    args[1].codes[args[4][0, 0], 0, 99] = torch.nan  # visible to the last token's first head alone
    got = native.sparse_attention(*args)
    assert got[1, :2].isnan().all()
    assert got[1, 2:].isfinite().all() and got[0].isfinite().all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda args: args.__setitem__(3, args[3] + 9), "selection has block"),
        (lambda args: args.__setitem__(4, args[4] + 99), "the pool has 4 blocks"),
        (lambda args: args.__setitem__(5, args[5][:1]), "positions"),
        (lambda args: args.__setitem__(0, args[0][..., :24]), "dim is 24"),
        (lambda args: args.__setitem__(0, args[0][:, :3]), "3 query heads"),
    ],
    ids=["index", "block id", "tokens", "dim", "heads"],
)
def test_bad_arguments_are_refused(change, says):
    args = case(("float32", "exact"), 100, 2)
    change(args)
    with pytest.raises(ValueError, match=says):
        native.sparse_attention(*args)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_threads_of_its_own():
    args = case(("float32", "exact"), 600, 64)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        q, *rest = args
        lanes_and_more = (q.numpy(), *native._lane(rest[0]), *native._lane(rest[1]))
        tensors = (rest[2].contiguous().numpy(), rest[3].numpy(), rest[4].numpy())
        expected = native.sparse_attention(*args).numpy()
    finally:
        torch.set_num_threads(threads)
    child = os.fork()
    if child == 0:  # no torch in here: its own threads do not live through a fork
        out = expected * 0
        EXTENSION.module.sparse_attention(*lanes_and_more, *tensors, 0.2, out, 2, "auto")
        os._exit(0 if (out == expected).all() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
