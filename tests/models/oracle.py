"""Builds random small checkpoints with `transformers` and runs them there and here."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import MiniMaxM3VLForCausalLM, PreTrainedModel
from transformers.models.minimax_m3_vl import MiniMaxM3VLTextConfig

from tamis.attention.msa import SelectionRule, StepAttention
from tamis.attention.plan import Segment, StepTables
from tamis.cache.layout import row_layout
from tamis.cache.pool import RowPool
from tamis.models.config import M3Config, read_config
from tamis.models.m3 import M3ForCausalLM
from tamis.runner.weights import build_model, load_weights


@dataclass(frozen=True)
class Shape:
    """One oracle case; the defaults are small and have every kind of layer."""

    group: int = 2
    kv_heads: int = 2
    head_dim: int = 32
    topk: int = 3
    local: int = 1
    sparse: tuple[bool, ...] = (False, True, True)
    moe: tuple[bool, ...] = (False, True, True)
    rotary_dim: int = 16
    experts: int = 4
    experts_per_token: int = 2
    hidden: int = 48
    intermediate: int = 24
    dense: int = 56
    shared: int = 40
    extra: dict[str, Any] = field(default_factory=dict)

    def text_config(self) -> MiniMaxM3VLTextConfig:
        return MiniMaxM3VLTextConfig(
            vocab_size=97,
            hidden_size=self.hidden,
            num_hidden_layers=len(self.sparse),
            num_attention_heads=self.group * self.kv_heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": self.rotary_dim / self.head_dim,
            },
            intermediate_size=self.intermediate,
            dense_intermediate_size=self.dense,
            shared_intermediate_size=self.shared,
            num_local_experts=self.experts,
            num_experts_per_tok=self.experts_per_token,
            index_n_heads=self.kv_heads,
            index_head_dim=self.head_dim,
            index_topk_blocks=self.topk,
            index_local_blocks=self.local,
            layer_types=["minimax_m3_sparse" if s else "full_attention" for s in self.sparse],
            mlp_layer_types=["sparse" if m else "dense" for m in self.moe],
            max_position_embeddings=8192,
            bos_token_id=1,
            eos_token_id=2,
            dtype="float32",
            attn_implementation="eager",
            **self.extra,
        )


def oracle_model(shape: Shape, seed: int) -> MiniMaxM3VLForCausalLM:
    """A random model whose weights are large enough for every part to matter."""
    torch.manual_seed(seed)
    model = MiniMaxM3VLForCausalLM(shape.text_config()).eval().requires_grad_(False)
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        if "inv_freq" in name:
            continue
        if parameter.dim() == 1:
            parameter.normal_(0.0, 0.2)  # norm weights and the router's correction bias
        else:
            parameter.normal_(0.0, 1.5 * parameter.shape[-1] ** -0.5)
    return model


def oracle_run(model: PreTrainedModel, token_ids: list[int]) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """(logits [T, vocab], layer → block sets [T, heads, blocks] bool), of a text model or a multimodal one."""
    picked: dict[int, torch.Tensor] = {}

    def keep(layer: int):
        def hook(_module, _args, output):
            num_blocks = -(-len(token_ids) // 128)
            chosen = torch.zeros(*output.shape[:3], num_blocks + 1, dtype=torch.bool)
            chosen.scatter_(-1, output.masked_fill(output < 0, num_blocks), True)
            picked[layer] = chosen[0, :, :, :num_blocks].transpose(0, 1)

        return hook

    hooks = [
        layer.self_attn.indexer.register_forward_hook(keep(i))
        for i, layer in enumerate(getattr(model.model, "language_model", model.model).layers)
        if layer.self_attn.indexer is not None
    ]
    with torch.no_grad():
        logits = model(torch.tensor([token_ids]), use_cache=False).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, picked


def load_ours(folder: Path) -> M3ForCausalLM:
    """The checkpoint in `folder` through the engine's own loader, fp32 on the CPU."""
    model = build_model(read_config(folder), torch.float32, torch.device("cpu"))
    load_weights(model, folder, lambda stage, percent: None)
    model.fuse_projections()  # as the engine does
    return model


def make_pool(config: M3Config, num_blocks: int, kv_format: str = "float32", index_format: str = "float32") -> RowPool:
    """A pool whose every byte is poison until written."""
    layout = row_layout(
        sparse_layers=config.sparse_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        index_head_dim=config.index_head_dim,
        kv_format=kv_format,
        index_format=index_format,
    )
    pool = RowPool(layout, num_blocks, torch.device("cpu"))
    pool.rows.fill_(0xFF)
    return pool


def our_run(
    model: M3ForCausalLM, token_ids: list[int], pool: RowPool | None = None
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    """One prefill of the whole prompt, in shuffled blocks: (logits [T, vocab], layer → selection [T, heads, k])."""
    count = len(token_ids)
    num_blocks = -(-count // 128)
    config = model.config
    pool = pool or make_pool(config, num_blocks + 4)
    table = torch.randperm(num_blocks + 3, generator=torch.Generator().manual_seed(1))[:num_blocks] + 1
    positions = torch.arange(count)
    tables = StepTables(
        segments=[Segment(0, count, count)],
        positions=positions,
        slots=table[positions // 128] * 128 + positions % 128,
        block_tables=table[None],
        request_of_token=torch.zeros(count, dtype=torch.int64),
    )
    rule = SelectionRule(config.topk_blocks, config.init_blocks, config.local_blocks)
    attention = StepAttention(pool, tables, rule, config.head_dim**-0.5, keep_selections=True)
    with torch.inference_mode():
        hidden = model(torch.tensor(token_ids), positions, attention, count)
        return model.compute_logits(hidden), attention.selections


def as_block_sets(selection: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """[T, heads, k] ids, −1 padded → [T, heads, num_blocks] bool."""
    out = torch.zeros(*selection.shape[:2], num_blocks + 1, dtype=torch.bool)
    out.scatter_(-1, selection.masked_fill(selection < 0, num_blocks), True)
    return out[..., :num_blocks]
