"""Cases of the Triton kernels on packed weights: run in Triton's interpreter on a CPU, and by tests/gpu on a GPU.

`python -m tests.kernels.packed_cases` prints {case: relative errors} as JSON. Memory that torch hands out unwritten is
poisoned with NaN, so an output that is not written is seen.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from tamis.kernels.linear import reference as linear_reference
from tamis.kernels.linear import triton as linear_triton
from tamis.kernels.moe import reference as moe_reference
from tamis.kernels.moe import triton as moe_triton
from tamis.kernels.packed_weight import Weight, quantize_mxfp8, quantize_nvfp4

FACTORS = {"scale": 2.0, "alpha": 1.702, "limit": 1.5}
# What a path that loses a factor would compute with.
LOST = {"scale": {"scale": 1.0}, "alpha": {"alpha": 1.0}, "limit": {"limit": 1e9}, "weights": {}}


@dataclass(frozen=True)
class LinearCase:
    format: str
    tokens: int
    n: int
    k: int
    tiles: linear_triton.LinearTiles | None = None


@dataclass(frozen=True)
class MoECase:
    routed: str
    shared: str
    tokens: int
    routing: str = "random"
    tiles: moe_triton.MoETiles | None = None
    hidden: int = 96
    inner: int = 160
    shared_inner: int = 64
    experts: int = 5
    top_k: int = 2


_PHASED = linear_triton.LinearTiles(64, 32, 128, True, 4, 2)
_REMAINDERS = moe_triton.MoETiles(64, 32, 16, 32, 128, True, 4, 2)

LINEAR = {
    f"{c.format} {c.tokens}x{c.n}x{c.k}{' phased' if c.tiles else ''}": c
    for c in (
        LinearCase("mxfp8", 1, 70, 128),
        LinearCase("nvfp4", 1, 70, 144),
        LinearCase("mxfp8", 17, 64, 416),
        LinearCase("nvfp4", 17, 130, 400),
        LinearCase("mxfp8", 65, 96, 160, _PHASED),
        LinearCase("nvfp4", 65, 33, 272, _PHASED),
        LinearCase("nvfp4", 3, 129, 256, _PHASED),
    )
}
MOE = {
    f"{c.routed}+{c.shared} {c.tokens} tokens {c.routing}{' phased' if c.tiles else ''}": c
    for c in (
        MoECase("nvfp4", "mxfp8", 1),
        MoECase("nvfp4", "mxfp8", 3),
        MoECase("nvfp4", "mxfp8", 17, "one expert"),
        MoECase("nvfp4", "mxfp8", 65, "random", _REMAINDERS),
        MoECase("nvfp4", "mxfp8", 33, "one expert", _REMAINDERS),
        MoECase("mxfp8", "plain", 17),
        MoECase("mxfp8", "nvfp4", 17, "random", _REMAINDERS),
        MoECase("plain", "mxfp8", 17, "random", _REMAINDERS),
        MoECase("plain", "plain", 3),
    )
}


def quantized(weight: Tensor, form: str) -> Weight:
    """A weight in a format."""
    return {"plain": lambda w: w.bfloat16(), "mxfp8": quantize_mxfp8, "nvfp4": quantize_nvfp4}[form](weight)


def relative_error(got: Tensor, want: Tensor) -> float:
    """Frobenius; NaN where either has one."""
    return float((got.double() - want).norm() / want.norm())


def linear_errors(case: LinearCase, device: str) -> dict[str, float]:
    """{"error": against fp64}; rows of the matrix differ much in size, so that a scale out of place shows."""
    sizes = torch.randn(case.n, 1, device=device).exp()
    weight = quantized(torch.randn(case.n, case.k, device=device) * sizes, case.format)
    x = torch.randn(case.tokens, case.k, device=device).bfloat16()
    return {"error": relative_error(linear_triton.linear(x, weight, case.tiles), linear_reference.linear(x, weight))}


def moe_inputs(case: MoECase, device: str) -> dict[str, Tensor | Weight]:
    """Values large enough that `limit` bites; expert 1 is chosen by nobody."""

    def matrix(form: str, *shape: int) -> Weight:
        return quantized(torch.randn(*shape, device=device) * 2.0 * shape[-1] ** -0.5, form)

    others = [e for e in range(case.experts) if e != 1]
    if case.routing == "one expert":
        ids = [[others[-1], others[0]] for _ in range(case.tokens)]
    else:
        ids = [[others[i] for i in torch.randperm(len(others))[: case.top_k]] for _ in range(case.tokens)]
    weights = torch.rand(case.tokens, case.top_k, device=device) + 0.1
    return {
        "x": torch.randn(case.tokens, case.hidden, device=device).bfloat16(),
        "expert_ids": torch.tensor(ids, device=device),
        "weights": weights / weights.sum(-1, keepdim=True),
        "gate_up": matrix(case.routed, case.experts, 2 * case.inner, case.hidden),
        "down": matrix(case.routed, case.experts, case.hidden, case.inner),
        "shared_gate_up": matrix(case.shared, 2 * case.shared_inner, case.hidden),
        "shared_down": matrix(case.shared, case.hidden, case.shared_inner),
    }


def moe_errors(case: MoECase, device: str) -> dict[str, float]:
    """{"error": against fp64, "without alpha": against fp64 that lost it, …}."""
    inputs = moe_inputs(case, device)
    got = moe_triton.moe(**inputs, **FACTORS, config=case.tiles)
    errors = {"error": relative_error(got, moe_reference.moe(**inputs, **FACTORS))}
    for lost, factors in LOST.items():
        poorer = (
            {**inputs, "weights": torch.full_like(inputs["weights"], 1 / case.top_k)} if lost == "weights" else inputs
        )
        errors[f"without {lost}"] = relative_error(got, moe_reference.moe(**poorer, **{**FACTORS, **factors}))
    return errors


def main() -> None:
    """Every case on the CPU; needs TRITON_INTERPRET=1."""
    # Fills what torch.empty returns with NaN.
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {name: linear_errors(case, "cpu") for name, case in LINEAR.items()}
    results |= {name: moe_errors(case, "cpu") for name, case in MOE.items()}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
