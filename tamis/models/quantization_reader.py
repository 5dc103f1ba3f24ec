"""Reads quantization configs in their public spellings: `quant_method` mxfp8 (M3-MXFP8, M3.1) and modelopt.

ModelOpt writes the same object in up to three places: `hf_quant_config.json`, `quantization_config` of config.json,
or nested in it under `quantization`. Activations are not quantised here whatever the config says of them: products
run in the compute dtype, so `activation_scheme` and the input scales change nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tamis.errors import ConfigError
from tamis.models.config_reader import Reader
from tamis.models.quantization import LayerFormats, LayerShape, Quantization, WeightFormat, resolve_formats

# Keys that say how activations are quantised, or who wrote the file.
_NO_EFFECT = frozenset({"activation_scheme", "producer", "is_checkpoint_mxfp8_serialized", "version"})
_SHARED = frozenset({"quant_method", "kv_cache_quant_algo", "kv_cache_scheme", "group_size"})
_MXFP8 = frozenset(
    {
        "weight_block_size",
        "fmt",
        "scale_fmt",
        "ignored_layers",
        "modules_to_not_convert",
        "moe_quant_algo",
        "moe_quant_format",
    }
)
_MODELOPT = frozenset({"quant_algo", "exclude_modules", "ignore", "quantized_layers", "config_groups", "quantization"})
_ALGOS = {"NVFP4": WeightFormat.NVFP4, "W4A16_NVFP4": WeightFormat.NVFP4, "MXFP8": WeightFormat.MXFP8}
_UNQUANTISED = ("UNQUANTIZED", "NONE", "BF16", "W16A16")
_METHOD = re.compile(r"modelopt(_fp4|_nvfp4|_mxfp8|_mixed)?")


def parse_quantization(read: Reader) -> Quantization:
    """The formats that a `quantization_config` (or hf_quant_config.json) states.

    Raises:
        ConfigError: an unknown method, algorithm, format, group size or field.
    """
    method = _text(read, "quant_method")
    if method is None and read.get("quantization") is not None:
        method = "modelopt"  # hf_quant_config.json does not name its own method
    if method == "mxfp8":
        return _parse_mxfp8(read)
    if method is not None and _METHOD.fullmatch(method):
        return _parse_modelopt(read)
    raise read.refuse("quant_method", "mxfp8 or modelopt", "Convert the checkpoint of the same model in bf16.")


def stated_formats(
    stated: list[Reader], beside: Reader | None, layers: tuple[LayerShape, ...]
) -> tuple[tuple[LayerFormats, ...], str | None]:
    """(formats of each layer, KV cache format) by all that is said of them; where several speak, they must agree.

    Args:
        stated: every `quantization_config` of config.json.
        beside: hf_quant_config.json, or None.
        layers: which linears there are.
    """
    if beside is not None:
        # config.json may name the tool alone and leave the rest to the file.
        stated = [*(r for r in stated if _names_algorithm(r)), beside]
    rules = [parse_quantization(r) for r in stated] or [Quantization()]
    found = [resolve_formats(rule, layers) for rule in rules]
    for rule, formats in zip(rules[1:], found[1:], strict=True):
        if (formats, rule.kv_cache) != (found[0], rules[0].kv_cache):
            raise ConfigError(
                f"{rules[0].source} and {rule.source} state different formats for the same weights or cache.",
                param="quantization_config",
                hint="Remove the one that does not describe the checkpoint.",
            )
    return found[0], rules[0].kv_cache


def _names_algorithm(read: Reader) -> bool:
    return (
        _text(read, "quant_method") == "mxfp8"
        or read.get("quant_algo") is not None
        or read.child("quantization").get("quant_algo") is not None
    )


def _parse_mxfp8(read: Reader) -> Quantization:
    _check_keys(read, _SHARED | _MXFP8)
    read.only("weight_block_size", [1, 32])
    read.only("fmt", "e4m3", "float8_e4m3fn")
    read.only("scale_fmt", "ue8m0", "e8m0")
    algo, layout = _text(read, "moe_quant_algo"), _text(read, "moe_quant_format")
    experts = None
    if algo is not None:
        if algo not in ("nvfp4", "mxfp8"):
            raise read.refuse("moe_quant_algo", "NVFP4, or left out")
        if algo == "nvfp4" and layout != "nvfp4-pack-quantized":
            raise read.refuse("moe_quant_format", "nvfp4-pack-quantized when moe_quant_algo is NVFP4")
        experts = WeightFormat.NVFP4_PACKED if algo == "nvfp4" else None
    elif layout is not None:
        raise read.refuse("moe_quant_format", "left out when there is no moe_quant_algo")
    read.only("group_size", *((16, 32) if experts else (32,)))
    return Quantization(
        default=WeightFormat.MXFP8,
        experts=experts,
        ignored=_names(read, "ignored_layers") + _names(read, "modules_to_not_convert"),
        kv_cache=_kv_cache(read),
        source=read.file,
    )


def _parse_modelopt(read: Reader) -> Quantization:
    _check_keys(read, _SHARED | _MODELOPT)
    if read.get("quantization") is not None:
        read = read.child("quantization")
        _check_keys(read, _SHARED | _MODELOPT - {"quantization"})
    algo = _text(read, "quant_algo")
    ignored = _names(read, "exclude_modules") + _names(read, "ignore")
    if algo == "mixed_precision":
        layers = _layer_map(read)
        return Quantization(default=None, layers=layers, ignored=ignored, kv_cache=_kv_cache(read), source=read.file)
    if algo is None or algo.upper() not in _ALGOS:
        raise read.refuse("quant_algo", f"one of MIXED_PRECISION, {', '.join(_ALGOS)}")
    default = _ALGOS[algo.upper()]
    read.only("group_size", default.group)
    return Quantization(default=default, ignored=ignored, kv_cache=_kv_cache(read), source=read.file)


def _layer_map(read: Reader) -> tuple[tuple[str, WeightFormat], ...]:
    stated = read.child("quantized_layers")
    if not stated.values:
        return _from_groups(read.child("config_groups"))
    out = []
    _check_expressions(read, "quantized_layers", stated.values)
    for name in stated.values:
        layer = stated.child(name)
        algo = _text(layer, "quant_algo") or ""
        if algo.upper() in _UNQUANTISED:
            out.append((name, WeightFormat.PLAIN))
            continue
        if algo.upper() not in _ALGOS:
            raise layer.refuse("quant_algo", f"one of {', '.join(_ALGOS)}")
        found = _ALGOS[algo.upper()]
        layer.only("group_size", found.group)
        out.append((name, found))
    return tuple(out)


def _from_groups(groups: Reader) -> tuple[tuple[str, WeightFormat], ...]:
    """The map of `config_groups`, where `targets` lists module names and `weights` the number format."""
    if not groups.values:
        raise ConfigError(
            f"{groups.file} has quant_algo MIXED_PRECISION without quantized_layers: which linear has which format is "
            "open.",
            param="quantized_layers",
            hint="Take quantized_layers over from the checkpoint's hf_quant_config.json.",
        )
    out = []
    for key in groups.values:
        group = groups.child(key)
        weights = group.child("weights")
        weights.only("type", "float")
        bits = weights.integer("num_bits")
        found = {4: WeightFormat.NVFP4, 8: WeightFormat.MXFP8}.get(bits)
        if found is None:
            raise weights.refuse("num_bits", "4 (NVFP4) or 8 (MXFP8)")
        if weights.get("group_size") != found.group:
            raise weights.refuse("group_size", f"{found.group} with num_bits {bits}")
        out += [(name, found) for name in _names(group, "targets")]
    return tuple(out)


def _kv_cache(read: Reader) -> str | None:
    """The cache format that the checkpoint's KV scales were made for."""
    algo = _text(read, "kv_cache_quant_algo")
    if algo is not None and algo != "none":
        if algo not in ("fp8", "nvfp4"):
            raise read.refuse("kv_cache_quant_algo", "FP8, NVFP4 or null")
        return algo
    scheme = read.child("kv_cache_scheme")
    if not scheme.values:
        return None
    scheme.only("type", "float")
    found = {8: "fp8", 4: "nvfp4"}.get(scheme.integer("num_bits"))
    if found is None:
        raise scheme.refuse("num_bits", "8 (fp8) or 4 (nvfp4)")
    return found


def _text(read: Reader, key: str) -> str | None:
    """A string in lower case."""
    value: Any = read.get(key)
    if value is not None and not isinstance(value, str):
        raise read.refuse(key, "a string")
    return value.lower() if value is not None else None


def _names(read: Reader, key: str) -> tuple[str, ...]:
    value = read.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise read.refuse(key, "a list of module names")
    _check_expressions(read, key, value)
    return tuple(value)


def _check_expressions(read: Reader, key: str, entries: Iterable[str]) -> None:
    for entry in entries:
        if entry.startswith("re:"):
            try:
                re.compile(entry.removeprefix("re:"))
            except re.error as error:
                raise ConfigError(
                    f"{read.file} has {entry!r} in {read.name(key)}, which is no valid expression: {error}.",
                    param=key,
                    hint="Correct it, or name the module.",
                ) from None


def _check_keys(read: Reader, known: frozenset[str]) -> None:
    unknown = [k for k, v in read.values.items() if v is not None and k not in known | _NO_EFFECT]
    if unknown:
        raise ConfigError(
            f"{read.file} has quantisation fields whose effect is not known here: "
            f"{', '.join(map(read.name, unknown))}.",
            param=unknown[0],
            hint="If they change nothing, drop them, e.g. --hf-overrides "
            f"""'{{"quantization_config": {{"{unknown[0]}": null}}}}'.""",
        )
