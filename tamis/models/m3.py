"""MiniMax-M3's text model: one forward for inference and training; attention is handed in.

The model projects, normalises and turns; what happens to q, k, v and the index branch (cache, selection, attention)
is the business of the `Attention` it is given. Source: `MiniMaxM3SparseForConditionalGeneration`, text part.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn

from tamis.kernels import linear as linear_kernel
from tamis.kernels.packed_weight import Weight
from tamis.layers.embedding import Embedding
from tamis.layers.linear import Linear
from tamis.layers.mlp import GatedMLP
from tamis.layers.moe import MoE
from tamis.layers.norm import RMSNorm
from tamis.layers.rope import RotaryTable, apply_rope
from tamis.layers.weight import join, rows
from tamis.models.config import M3Config


class Attention(Protocol):
    """Causal attention of the tokens of one step, for any layer."""

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, index_q: Tensor | None, index_k: Tensor | None
    ) -> Tensor:
        """Insert k, v (and index_k) for the step's tokens, then attend.

        Args:
            layer: which layer.
            q: [T, num_heads, head_dim], normalised and turned.
            k, v: [T, num_kv_heads, head_dim]; k normalised and turned.
            index_q: [T, index_num_heads, index_head_dim], and
            index_k: [T, index_head_dim], normalised and turned, on MSA layers; None on full-attention layers.

        Returns:
            [T, num_heads, head_dim].
        """
        ...


class SelfAttention(nn.Module):
    """Projections, per-head norms and RoPE around an `Attention`."""

    def __init__(self, config: M3Config, layer: int):
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        self.index_dim = config.index_head_dim
        width = config.num_heads * config.head_dim
        kv_width = config.num_kv_heads * config.head_dim
        formats = config.weight_formats[layer]
        self.q_proj = Linear(config.hidden_size, width, formats.q_proj.packing)
        self.k_proj = Linear(config.hidden_size, kv_width, formats.k_proj.packing)
        self.v_proj = Linear(config.hidden_size, kv_width, formats.v_proj.packing)
        self.o_proj = Linear(width, config.hidden_size, formats.o_proj.packing)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.is_sparse = config.sparse_layers[layer]
        if self.is_sparse:
            index_width = config.index_num_heads * config.index_head_dim
            self.index_q_proj = Linear(config.hidden_size, index_width, formats.index_q_proj.packing)
            self.index_k_proj = Linear(config.hidden_size, config.index_head_dim, formats.index_k_proj.packing)
            self.index_q_norm = RMSNorm(config.index_head_dim, config.rms_norm_eps)
            self.index_k_norm = RMSNorm(config.index_head_dim, config.rms_norm_eps)
        self.fused_weight: Weight | None = None

    def fuse_projections(self) -> None:
        """Make one matrix of all input projections, for inference; their own weights become views of it.

        Projections in different formats stay apart.
        """
        parts = self._input_projections()
        matrices = [p.matrix.detach() if isinstance(p.matrix, Tensor) else p.matrix for p in parts]
        joined = self.fused_weight = join(matrices)
        if joined is None:
            return
        start = 0
        for part in parts:
            part.stand_for(rows(joined, start, start + part.out_features))
            start += part.out_features

    def _input_projections(self) -> list[Linear]:
        parts = [self.q_proj, self.k_proj, self.v_proj]
        return [*parts, self.index_q_proj, self.index_k_proj] if self.is_sparse else parts

    def _project(self, x: Tensor) -> list[Tensor]:
        """q, k, v and, on MSA layers, the index query and key: each [T, its width]."""
        parts = self._input_projections()
        if self.fused_weight is not None:
            return list(linear_kernel.linear(x, self.fused_weight).split([p.out_features for p in parts], dim=-1))
        # In training the index branch learns from its own loss only, so its input is detached.
        return [part(x) for part in parts[:3]] + [part(x.detach()) for part in parts[3:]]

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """x: [T, hidden_size] → same."""
        q, k, v, *index = self._project(x)
        q = apply_rope(self.q_norm(q.unflatten(-1, (-1, self.head_dim))), cos, sin)
        k = apply_rope(self.k_norm(k.unflatten(-1, (-1, self.head_dim))), cos, sin)
        v = v.unflatten(-1, (-1, self.head_dim))
        index_q = index_k = None
        if index:
            index_q = self.index_q_norm(index[0].unflatten(-1, (-1, self.index_dim)))
            index_k = self.index_k_norm(index[1].unflatten(-1, (1, self.index_dim)))
            turned = min(cos.shape[-1], self.index_dim // 2)
            index_q = apply_rope(index_q, cos[:, :turned], sin[:, :turned])
            index_k = apply_rope(index_k, cos[:, :turned], sin[:, :turned])[:, 0]
        out = attention.attend(self.layer, q, k, v, index_q, index_k)
        return self.o_proj(out.flatten(1))


class DecoderLayer(nn.Module):
    """Pre-norm attention and MLP (dense or mixture of experts) with residuals."""

    def __init__(self, config: M3Config, layer: int):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = SelfAttention(config, layer)
        self.mlp: MoE | GatedMLP
        formats = config.weight_formats[layer]
        packings = (formats.gate_up_proj.packing, formats.down_proj.packing)
        if config.moe_layers[layer]:
            self.mlp = MoE(
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                shared_intermediate_size=config.shared_intermediate_size,
                num_experts=config.num_experts,
                top_k=config.num_experts_per_tok,
                scale=config.routed_scaling_factor,
                alpha=config.swiglu_alpha,
                limit=config.swiglu_limit,
                expert_packings=(formats.experts_gate_up.packing, formats.experts_down.packing),
                shared_packings=packings,
            )
        else:
            self.mlp = GatedMLP(
                config.hidden_size, config.dense_intermediate_size, config.swiglu_alpha, config.swiglu_limit, packings
            )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attention: Attention) -> Tensor:
        """x: [T, hidden_size] → same."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attention)
        return x + self.mlp(self.post_attention_layernorm(x))


class M3ForCausalLM(nn.Module):
    """Embedding, decoder layers, final norm and head. Parameters are empty until loaded or initialised.

    Linears are held as `config.weight_formats` says.
    """

    def __init__(self, config: M3Config):
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config, layer) for layer in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.embed_tokens.weight
        self.rotary = RotaryTable(config.rotary_dim, config.rope_theta)

    def forward(self, token_ids: Tensor, positions: Tensor, attention: Attention, num_positions: int) -> Tensor:
        """One step over the tokens of any number of requests.

        Args:
            token_ids, positions: [T] int64.
            attention: what serves `attend` for these tokens.
            num_positions: a bound above every position, known on the host.

        Returns:
            [T, hidden_size], after the final norm.
        """
        x = self.embed_tokens(token_ids)
        cos, sin = self.rotary.lookup(positions, num_positions)
        for layer in self.layers:
            x = layer(x, cos, sin, attention)
        return self.norm(x)

    def fuse_projections(self) -> None:
        """Join each layer's input projections into one matrix; for inference, after the weights are loaded."""
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.fuse_projections()

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [N, hidden_size] → fp32 logits [N, vocab_size]."""
        return self.lm_head(hidden).float()
