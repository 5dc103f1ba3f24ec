"""The native product and mixture: against fp64, and the same bits whatever stands beside a row."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest
import torch

from tamis.kernels import cpu_extension, linear, moe, registry
from tamis.kernels.linear import cpu as torch_linear
from tamis.kernels.linear import native as native_linear
from tamis.kernels.linear import reference as linear_reference
from tamis.kernels.moe import native as native_moe
from tamis.kernels.moe import reference as moe_reference

EXTENSION = cpu_extension.load()
pytestmark = pytest.mark.skipif(EXTENSION.module is None, reason=EXTENSION.reason or "-")
PATHS = [path for path, usable in EXTENSION.build.get("paths", {}).items() if usable]
FACTORS = {"scale": 2.0, "alpha": 1.702, "limit": 7.0}


@pytest.fixture
def threads():
    """Sets torch's number of threads, and puts it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def product(rows: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * 10_007 + n * 101 + k)
    return torch.randn(rows, k, generator=generator), torch.randn(n, k, generator=generator)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("rows", "n", "k"), [(1, 1, 1), (1, 130, 63), (2, 5, 8), (3, 97, 127), (7, 33, 129), (65, 200, 256), (300, 97, 40)]
)
def test_a_product_equals_fp64(path: str, rows: int, n: int, k: int) -> None:
    x, weight = product(rows, n, k)
    want = linear_reference.linear(x, weight)
    assert float((native_linear.linear(x, weight, path) - want).abs().max()) < 2e-6 * k**0.5 * float(want.abs().max())


@pytest.mark.parametrize("path", PATHS)
def test_a_row_has_the_same_bits_alone_and_among_others(path: str, threads) -> None:
    # So many that several threads share them.
    x, weight = product(700, 193, 200)
    threads(1)
    together = native_linear.linear(x, weight, path)
    threads(2)
    assert torch.equal(native_linear.linear(x, weight, path), together)
    for start, count in ((0, 1), (699, 1), (5, 2), (17, 3), (250, 9), (100, 300)):
        assert torch.equal(
            native_linear.linear(x[start : start + count], weight, path), together[start : start + count]
        )


def test_leading_dims_empty_rows_and_unfinite_values_pass() -> None:
    x, weight = product(6, 9, 24)
    assert torch.equal(native_linear.linear(x.view(2, 3, 24), weight), native_linear.linear(x, weight).view(2, 3, 9))
    assert native_linear.linear(x[:0], weight).shape == (0, 9)
    x[1, 3], x[2, 0] = torch.nan, torch.inf
    out = native_linear.linear(x, weight)
    assert out[1].isnan().all() and not out[2].isfinite().any() and out[3:].isfinite().all()


def test_what_it_cannot_multiply_is_refused() -> None:
    x, weight = product(2, 9, 24)
    with pytest.raises(ValueError, match=r"weight is \[9, 24\] .* but must be \[N, 23\]"):
        native_linear.linear(x[:, :23], weight)
    with pytest.raises(ValueError, match="strides"):
        native_linear.linear(x[:, :9].contiguous(), weight.T)
    with pytest.raises(ValueError, match=r"x is torch\.float64"):
        native_linear.linear(x.double(), weight)
    with pytest.raises(ValueError, match="path is 'avx1024'"):
        native_linear.linear(x, weight, "avx1024")


def mixture(tokens: int, *, hidden: int = 40, inner: int = 56, shared: int = 24, experts: int = 6, top_k: int = 3):
    generator = torch.Generator().manual_seed(tokens)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * shape[-1] ** -0.5 * 2.0

    return {
        "x": draw(tokens, hidden) * hidden**0.5,
        "expert_ids": torch.rand(tokens, experts, generator=generator).topk(top_k).indices,
        "weights": torch.rand(tokens, top_k, generator=generator),
        "gate_up": draw(experts, 2 * inner, hidden),
        "down": draw(experts, hidden, inner),
        "shared_gate_up": draw(2 * shared, hidden),
        "shared_down": draw(hidden, shared),
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tokens", [1, 2, 7, 63, 130])
def test_a_mixture_equals_fp64_and_keeps_every_factor(path: str, tokens: int) -> None:
    inputs = mixture(tokens)
    got = native_moe.moe(**inputs, **FACTORS, path=path)
    want = moe_reference.moe(**inputs, **FACTORS)
    assert float((got - want).norm() / want.norm()) < 1e-5
    for lost in ({"scale": 1.0}, {"alpha": 1.0}, {"limit": 1.0}):
        other = moe_reference.moe(**inputs, **{**FACTORS, **lost})
        assert float((other - want).norm() / want.norm()) > 1e-3, lost


@pytest.mark.parametrize("path", PATHS)
def test_a_token_has_the_same_bits_alone_and_among_others(path: str, threads) -> None:
    inputs = mixture(400, hidden=64, inner=96)
    threads(1)
    together = native_moe.moe(**inputs, **FACTORS, path=path)
    threads(2)
    assert torch.equal(native_moe.moe(**inputs, **FACTORS, path=path), together)
    for start, count in ((0, 1), (399, 1), (7, 5), (100, 150)):
        part = {name: inputs[name][start : start + count] for name in ("x", "expert_ids", "weights")}
        assert torch.equal(native_moe.moe(**{**inputs, **part}, **FACTORS, path=path), together[start : start + count])


def test_a_mixture_that_does_not_fit_is_refused() -> None:
    inputs = mixture(3)
    with pytest.raises(
        ValueError, match=r"down is torch\.float32 on cpu \[6, 40, 56\], but must be torch\.float32 \[5, 40, 56\]"
    ):
        native_moe.moe(**{**inputs, "gate_up": inputs["gate_up"][:5]}, **FACTORS)
    inputs["expert_ids"][2, 1] = 6
    with pytest.raises(IndexError, match="an expert's id is 6, but there are 6"):
        native_moe.moe(**inputs, **FACTORS)


def test_no_tokens_make_no_rows() -> None:
    assert native_moe.moe(**mixture(0), **FACTORS).shape == (0, 40)


def test_the_engine_s_products_are_these() -> None:
    x, weight = product(3, 96, 64)
    assert torch.equal(linear.linear(x, weight), native_linear.linear(x, weight))
    # Gradients, other dtypes and views of other layouts stay torch's.
    assert linear.linear(x.requires_grad_(), weight).requires_grad
    assert torch.equal(
        linear.linear(x.detach().bfloat16(), weight.bfloat16()),
        torch_linear.linear(x.detach().bfloat16(), weight.bfloat16()),
    )
    inputs = mixture(5)
    assert torch.equal(moe.moe(**inputs, **FACTORS), native_moe.moe(**inputs, **FACTORS))
    chosen = {
        op: registry.select(op, "cpu", variant).name
        for op, variant in (
            ("linear", "plain in torch.float32"),
            ("moe", "plain+plain in torch.float32"),
            ("linear", "mxfp8"),
        )
    }
    assert chosen == {"linear": "torch", "moe": "native"}


def test_a_forked_process_has_threads_of_its_own(threads) -> None:
    threads(2)
    x, weight = product(700, 193, 200)
    want = native_linear.linear(x, weight)
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run here, and no torch operation that would wake the parent's OpenMP threads.
        signal.alarm(20)
        os._exit(0 if np.array_equal(native_linear.linear(x, weight).numpy(), want.numpy()) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(native_linear.linear(x, weight), want)
