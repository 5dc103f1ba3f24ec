"""The public quantization configs of the formats that `tamis quantize` writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tamis.models.quantization import WeightFormat
from tamis.models.tensor_schema import LinearSpec
from tamis.version import __version__

# Name on the command line → (format of the routed experts, format of every other linear).
TARGETS: dict[str, tuple[WeightFormat, WeightFormat]] = {
    "m3.1": (WeightFormat.NVFP4_PACKED, WeightFormat.MXFP8),
    "modelopt": (WeightFormat.NVFP4, WeightFormat.MXFP8),
    "mxfp8": (WeightFormat.MXFP8, WeightFormat.MXFP8),
    "bf16": (WeightFormat.PLAIN, WeightFormat.PLAIN),
}
_ALGOS = {WeightFormat.MXFP8: "MXFP8", WeightFormat.NVFP4: "NVFP4"}


def quantization_config(
    target: str, linears: Iterable[LinearSpec], unquantised: list[str], kv_cache: str | None
) -> dict[str, Any] | None:
    """The `quantization_config` of config.json; None for bf16.

    Args:
        target: key of `TARGETS`.
        linears: in the target's formats.
        unquantised: names of modules that stay plain.
        kv_cache: format of the KV cache that the checkpoint's scales were made for, or None.
    """
    cache = None if kv_cache is None else kv_cache.upper()
    if target == "bf16":
        return None
    if target == "modelopt":
        return {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": cache,
            "producer": {"name": "tamis", "version": __version__},
            "exclude_modules": unquantised,
            "quantized_layers": {
                spec.name: {"quant_algo": _ALGOS[spec.format], "group_size": spec.format.group} for spec in linears
            },
        }
    config: dict[str, Any] = {
        "quant_method": "mxfp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [1, 32],
        "ignored_layers": unquantised,
    }
    if target == "m3.1":
        config |= {"moe_quant_algo": "NVFP4", "moe_quant_format": "nvfp4-pack-quantized"}
    return config if cache is None else config | {"kv_cache_quant_algo": cache}


def hf_quant_config(config: dict[str, Any]) -> dict[str, Any]:
    """ModelOpt's hf_quant_config.json: the same statements in its own nesting."""
    inner = ("quant_algo", "kv_cache_quant_algo", "exclude_modules", "quantized_layers")
    return {"producer": config["producer"], "quantization": {key: config[key] for key in inner}}
