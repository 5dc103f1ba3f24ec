"""From an EngineConfig to a runner that is ready: config, weights, pool, checks."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from tamis.cache.layout import RowLayout, row_layout
from tamis.cache.pool import RowPool
from tamis.config import BLOCK_TOKENS, EngineConfig
from tamis.engine.messages import EngineInfo
from tamis.errors import ConfigError
from tamis.kernels import index_score, linear, topk_blocks
from tamis.kernels.lane import variant as lane_variant
from tamis.kernels.packed_weight import Weight
from tamis.kernels.registry import explain
from tamis.layers.weight import held_weights
from tamis.models.config import M3Config, read_config
from tamis.models.m3 import M3ForCausalLM, SelfAttention
from tamis.models.quantization import WeightFormat
from tamis.models.tensor_schema import describe_formats
from tamis.planner.memory import CPU_POOL_SHARE, PoolPlan, available_host_bytes, plan_pool
from tamis.runner.model_runner import ModelRunner
from tamis.runner.weights import build_model, load_dummy, load_weights

Progress = Callable[[str, int], None]
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_engine(config: EngineConfig, progress: Progress) -> tuple[ModelRunner, EngineInfo]:
    """Load a model and its pool.

    Args:
        config: `model` is a folder.
        progress: called with (stage, percent); stages "loading" and "warming_up".

    Raises:
        CheckpointError, ConfigError: what cannot be loaded or honoured, in one sentence.
    """
    progress("loading", 0)
    folder = Path(config.model)
    model_config = read_config(folder, config.hf_overrides)
    device = _device(config)
    if device.type == "cpu":
        torch.set_num_threads(_threads(config))
    dtype = _compute_dtype(config, model_config, device)
    kv_format, index_format, contract = cache_formats(config, model_config)
    layout = row_layout(
        sparse_layers=model_config.sparse_layers,
        num_kv_heads=model_config.num_kv_heads,
        head_dim=model_config.head_dim,
        index_head_dim=model_config.index_head_dim,
        kv_format=kv_format,
        index_format=index_format,
    )
    # Sized before the weights are read: a context that cannot fit is said at once.
    held = _held_formats(config, model_config, layout, dtype, device)
    weight_bytes = 0 if device.type == "cuda" else _weight_bytes(held, dtype)
    plan = _plan_pool(config, model_config, layout, device, reserved_bytes=weight_bytes)
    model = build_model(held, dtype, device)
    kv_scales: dict[int, tuple[float, float]] = {}
    if config.load_format == "dummy":
        load_dummy(model, config.seed)
    else:
        kv_scales = load_weights(model, folder, progress, model_config)
    model.fuse_projections()
    if device.type == "cuda":
        plan = _plan_pool(config, model_config, layout, device, reserved_bytes=0)
    progress("warming_up", 0)
    pool = _make_pool(layout, plan, device, contract)
    if kv_format not in ("fp8", "nvfp4"):
        kv_scales = {}  # they keep values within a small format's range; these lanes hold them as they are
    invariance = _check_invariance(model, model_config, device, progress)
    progress("warming_up", 100)
    pool_tokens = (plan.num_blocks - 1) * BLOCK_TOKENS
    random_selection = config.attention_config.selection == "random"
    info = EngineInfo(
        model=config.model,
        vocab_size=model_config.vocab_size,
        max_model_len=plan.max_model_len,
        num_blocks=plan.num_blocks - 1,
        block_size=BLOCK_TOKENS,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        card={
            "layers": f"{model_config.num_layers} ({sum(model_config.sparse_layers)} MSA, "
            f"{sum(model_config.moe_layers)} MoE)",
            "parameters": f"{_num_parameters(model) / 1e6:.1f} M"
            + (" (dummy weights)" if config.load_format == "dummy" else ""),
            "weights": _weights_line(model, model_config, dtype),
            "device": f"{device.type}, {torch.get_num_threads()} threads" if device.type == "cpu" else str(device),
            "dtype": str(dtype).removeprefix("torch."),
            "kv cache": f"{kv_format}, index {index_format}"
            + (f", {contract} contract" if "nvfp4" in (kv_format, index_format) else "")
            + (f", KV scales in {len(kv_scales)} layers" if kv_scales else ""),
            "row": f"{layout.row_bytes:,} bytes a block of {BLOCK_TOKENS} tokens",
            "pool": f"{plan.num_blocks - 1:,} blocks = {pool_tokens:,} tokens, "
            f"{pool_tokens / plan.max_model_len:.1f} full contexts ({plan.reason})",
            "context": f"{plan.max_model_len:,} tokens",
            "kernels": _kernels(
                device.type,
                (kv_format, index_format),
                {
                    "nvfp4": contract,
                    "sparse_attention": lane_variant(kv_format, contract),
                    "index_score": index_score.variant(
                        index_format,
                        contract,
                        dtype,
                        model_config.index_num_heads,
                        model_config.index_head_dim,
                        device.type,
                    ),
                    "topk_blocks": topk_blocks.variant(
                        model_config.topk_blocks, -(-plan.max_model_len // BLOCK_TOKENS)
                    ),
                },
            ),
            **({"selection": "random: for measuring only"} if random_selection else {}),
            "same tokens whatever the load": invariance,
        },
    )
    return ModelRunner(model, pool, kv_scales, random_selection=random_selection), info


def _kernels(device: str, formats: tuple[str, str], variants: dict[str, str]) -> str:
    """Which implementations serve, with the ops of all but the most common one named, and why others do not."""
    entries = explain(device, variants)
    if "nvfp4" not in formats:
        entries = [e for e in entries if e["op"] != "nvfp4"]
    # That a kernel of another device does not serve goes without saying.
    elsewhere = ("triton",) if device == "cpu" else ("native",)
    by_name: dict[str, list[str]] = {}
    for entry in entries:
        why = "".join(f" ({name} {reason})" for name, reason in entry["refused"].items() if name not in elsewhere)
        by_name.setdefault(entry["implementation"], []).append(entry["op"] + why)
    return "; ".join(f"{name}: {', '.join(ops)}" for name, ops in sorted(by_name.items()))


def _device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "--device is cuda, but torch sees no CUDA GPU.",
            param="device",
            hint="Use --device cpu, or see tamis doctor.",
        )
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def _compute_dtype(config: EngineConfig, model_config: M3Config, device: torch.device) -> torch.dtype:
    by_device = "float32" if device.type == "cpu" else model_config.torch_dtype
    return _DTYPES[by_device if config.dtype == "auto" else config.dtype]


def cache_formats(config: EngineConfig, model_config: M3Config) -> tuple[str, str, str]:
    """(kv format, index format, dequant contract) with every "auto" resolved.

    Keys and values: what the checkpoint's quantization config asks for, else the dtype it was saved in. Index keys:
    as keys and values, but never on the checkpoint's word for those alone. Contract: M3.1 was trained with "e4m3";
    other checkpoints were not trained with NVFP4 at all, so theirs are the exact products.
    """
    attention = config.attention_config
    by_checkpoint = model_config.kv_cache_format or model_config.torch_dtype
    kv = by_checkpoint if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    by_kv = model_config.torch_dtype if config.kv_cache_dtype == "auto" else kv
    index = by_kv if attention.indexer_kv_dtype == "auto" else attention.indexer_kv_dtype
    contract: str = attention.dequant_contract
    if contract == "auto":
        contract = "e4m3" if model_config.is_m31 and "nvfp4" in (kv, index) else "exact"
    if contract == "e4m3" and "nvfp4" not in (kv, index):
        raise ConfigError(
            f"dequant_contract is 'e4m3', but neither the KV cache ({kv}) nor the index keys ({index}) are nvfp4.",
            param="attention_config",
            hint="Add --kv-cache-dtype nvfp4.",
        )
    return kv, index, contract


def _threads(config: EngineConfig) -> int:
    # Thousands of threads end in a crash of the thread library, or in a start that takes for ever.
    most = max(64, os.cpu_count() or 1)
    if config.threads is not None and config.threads > most:
        raise ConfigError(
            f"--threads is {config.threads}, but must be at most {most} on this machine.",
            param="threads",
            hint="Leave it out to use the cores this process may use.",
        )
    return config.threads or len(os.sched_getaffinity(0))


def _make_pool(layout: RowLayout, plan: PoolPlan, device: torch.device, contract: str) -> RowPool:
    try:
        return RowPool(layout, plan.num_blocks, device, contract)
    except (RuntimeError, OSError, OverflowError) as error:  # torch's allocators, and mmap below and over 64 bits
        raise ConfigError(
            f"The KV pool of {plan.num_blocks} blocks (by {plan.reason}) takes {plan.num_blocks * layout.row_bytes} "
            "bytes, which this machine does not give.",
            param="num_blocks_override",
            hint="Lower --num-gpu-blocks-override, --kv-cache-memory-bytes or --max-num-seqs.",
        ) from error


def _held_formats(
    config: EngineConfig, model_config: M3Config, layout: RowLayout, dtype: torch.dtype, device: torch.device
) -> M3Config:
    """The config with the formats in which linears are held in memory.

    A CPU computes with unpacked numbers: once unpacked for all steps is the same function and much faster, so that is
    what it does when they fit beside the pool. On a GPU they stay as they are stored.
    """
    if device.type != "cpu" or not model_config.is_quantized:
        return model_config
    unpacked = model_config.with_formats(WeightFormat.PLAIN, WeightFormat.PLAIN)
    available = available_host_bytes()
    pool = _plan_pool(config, model_config, layout, device, reserved_bytes=_weight_bytes(model_config, dtype))
    fits = _weight_bytes(unpacked, dtype) + pool.num_blocks * layout.row_bytes <= available
    return unpacked if fits else model_config


def _weight_bytes(config: M3Config, dtype: torch.dtype) -> int:
    return _held_bytes(build_model(config, dtype, torch.device("meta")))


def _held_bytes(model: M3ForCausalLM) -> int:
    return sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


def _num_parameters(model: M3ForCausalLM) -> int:
    """Values of all matrices and vectors, however they are held; scales are not counted."""
    packed = sum(w.shape.numel() for _, _, w in held_weights(model) if not isinstance(w, torch.Tensor))
    return packed + sum(p.numel() for p in model.parameters())


def _weights_line(model: M3ForCausalLM, stored: M3Config, dtype: torch.dtype) -> str:
    """How the linears are stored and held, and the bytes they take in memory."""
    line = f"{describe_formats(stored)}, {_held_bytes(model) / 1e9:.2f} GB"
    if not stored.is_quantized:
        return line
    return line + (", packed" if model.config.is_quantized else f", unpacked to {str(dtype).removeprefix('torch.')}")


def _plan_pool(
    config: EngineConfig, model_config: M3Config, layout: RowLayout, device: torch.device, *, reserved_bytes: int
) -> PoolPlan:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        budget, share = free - int((1.0 - config.gpu_memory_utilization) * total), 1.0
    else:
        budget, share = available_host_bytes() - reserved_bytes, CPU_POOL_SHARE
    return plan_pool(
        row_bytes=layout.row_bytes,
        block_tokens=BLOCK_TOKENS,
        model_max_len=model_config.max_position_embeddings,
        asked_max_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        free_bytes=max(budget, 0),
        share=share,
        asked_bytes=config.kv_cache_memory_bytes,
        asked_blocks=config.num_blocks_override,
    )


def _check_invariance(model: M3ForCausalLM, config: M3Config, device: torch.device, progress: Progress) -> str:
    """Try the machine's BLAS on every product's shape; with one thread, if it fails with several. Says the outcome."""
    if device.type != "cpu":
        return "not promised on a GPU yet"
    matrices: list[Weight] = [p for p in model.parameters() if p.dim() >= 2]
    matrices += [w for _, _, w in held_weights(model)]
    matrices += [m.fused_weight for m in model.modules() if isinstance(m, SelfAttention) and m.fused_weight is not None]
    # Shapes by the dtype they are multiplied in: the router and attention are fp32 whatever the model is, and packed
    # ones are unpacked to the model's.
    dtype = model.embed_tokens.weight.dtype
    dtypes = [m.dtype if isinstance(m, torch.Tensor) else dtype for m in matrices]
    shapes = {
        (m.shape[-2], m.shape[-1], d)
        for m, d in zip(matrices, dtypes, strict=True)
        if not (isinstance(m, torch.Tensor) and linear.is_native(d))
    }
    shapes |= {(n, k, torch.float32) for n, k in ((128, config.head_dim), (config.head_dim, 128))}
    shapes.add((2048, config.index_head_dim, torch.float32))

    def broken() -> list[tuple[int, int, torch.dtype]]:
        found = []
        for done, shape in enumerate(sorted(shapes, key=str)):
            found += linear.broken_shapes([shape])
            progress("warming_up", 100 * (done + 1) // len(shapes))
        return found

    if not broken():
        return "yes (checked on every matrix shape)"
    torch.set_num_threads(1)
    failing = broken()
    if not failing:
        return "yes, with one thread (this BLAS breaks it with more)"
    return f"no: this BLAS lets rows depend on each other at {[shape[:2] for shape in failing[:3]]}"
