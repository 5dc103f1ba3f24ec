"""Between a linear's tensors in a checkpoint and one weight in memory, in each stored format.

NVFP4's global scale is stored as a factor by ModelOpt (`weight_scale_2`) and as a divisor by compressed-tensors
(`weight_global_scale`): w = e2m1 · weight_scale · weight_scale_2 = e2m1 · weight_scale / weight_global_scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tamis.errors import CheckpointError
from tamis.kernels.packed_weight import MXFP8Weight, NVFP4Weight, Weight
from tamis.models.quantization import WeightFormat

# Both layouts keep a scale of the activations; ours are not quantised, so its value changes nothing.
INPUT_SCALES = {WeightFormat.NVFP4: "input_scale", WeightFormat.NVFP4_PACKED: "input_global_scale"}
_GLOBAL_SCALES = {WeightFormat.NVFP4: "weight_scale_2", WeightFormat.NVFP4_PACKED: "weight_global_scale"}


def unpack_parts(name: str, stored: WeightFormat, parts: dict[str, Tensor]) -> Weight:
    """One matrix from its tensors.

    Args:
        name: of the linear, for messages.
        parts: as `models.tensor_schema.linear_tensors` lists them.

    Raises:
        CheckpointError: a code or scale that is NaN, a scale of a group that has a sign, a scale of the whole matrix
            that is no finite positive number.
    """
    if stored is WeightFormat.PLAIN:
        return parts["weight"]
    if stored is WeightFormat.MXFP8:
        scales = parts["weight_scale_inv"].view(torch.uint8)
        if bool((scales == 0xFF).any()):
            raise bad_value(f"{name}.weight_scale_inv", "255", "an E8M0 exponent (255 is NaN)")
        # Without their signs, NaN's bits are the largest. Kernels that move bits would read it as 480.
        if int((parts["weight"].view(torch.uint8) << 1).max()) == 0xFE:
            raise bad_value(f"{name}.weight", "NaN", "finite")
        return MXFP8Weight(parts["weight"], scales)
    part = _GLOBAL_SCALES[stored]
    factor = as_factor(f"{name}.{part}", parts[part], is_divisor=stored is WeightFormat.NVFP4_PACKED)
    scales = parts["weight_scale"]
    # Kernels that move bits know no sign of a scale, and no writer sets it.
    if int(scales.view(torch.uint8).max()) >= 0x7F:
        raise bad_value(f"{name}.weight_scale", "NaN or a number with a sign", "finite and without a sign")
    codes = parts["weight" if stored is WeightFormat.NVFP4 else "weight_packed"]
    return NVFP4Weight(codes, scales, factor.expand(codes.shape[0]).contiguous())


def as_factor(name: str, scale: Tensor, *, is_divisor: bool) -> Tensor:
    """A scale of a whole matrix as a factor: fp32 of shape [1].

    Args:
        name: of the tensor, for messages.
        is_divisor: whether it is stored as the reciprocal.

    Raises:
        CheckpointError: it, or its reciprocal, is not a finite positive number.
    """
    scale = scale.reshape(1)
    other = 1.0 / scale
    if not all(bool((torch.isfinite(s) & (s > 0)).all()) for s in (scale, other)):
        raise bad_value(name, str(scale.item()), "a finite number over 0 whose reciprocal is finite too")
    return other if is_divisor else scale


def pack_parts(stored: WeightFormat, weight: Weight, input_scale: Tensor) -> dict[str, Tensor]:
    """The tensors of one matrix in a checkpoint.

    Args:
        stored: a format whose packing is `weight`'s.
        weight: one matrix; NVFP4 with one global scale, so all `row_scales` equal.
        input_scale: scalar fp32, as a factor; NVFP4 only.
    """
    if isinstance(weight, Tensor):
        return {"weight": weight}
    if isinstance(weight, MXFP8Weight):
        return {"weight": weight.codes, "weight_scale_inv": weight.scales}
    assert isinstance(weight, NVFP4Weight)
    factor = weight.row_scales[0]
    if stored is WeightFormat.NVFP4:
        return {
            "weight": weight.codes,
            "weight_scale": weight.scales,
            "weight_scale_2": factor.clone(),
            "input_scale": input_scale,
        }
    return {
        "weight_packed": weight.codes,
        "weight_scale": weight.scales,
        "weight_global_scale": 1.0 / factor,
        "input_global_scale": 1.0 / input_scale,
    }


def bad_value(name: str, value: str, must: str) -> CheckpointError:
    """The error that a value in a tensor cannot be used."""
    return CheckpointError(
        f"{name} holds {value}, but must be {must}.",
        param=name,
        hint="Download the checkpoint again, or convert it anew: tamis quantize.",
    )
