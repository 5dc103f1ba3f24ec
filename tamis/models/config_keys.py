"""Which keys of config.json mean what to this implementation."""

from __future__ import annotations

# fmt: off

# Keys of generic tooling that do not touch the forward pass at inference.
IGNORED = frozenset({
    "_name_or_path", "add_cross_attention", "architectures", "attention_dropout", "auto_map",
    "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward", "cross_attention_hidden_size",
    "decoder_start_token_id", "dtype", "eos_token_id", "finetuning_task", "id2label", "initializer_range",
    "is_decoder", "is_encoder_decoder", "label2id", "model_type", "output_attentions", "output_hidden_states",
    "output_router_logits", "pad_token_id", "prefix", "problem_type", "pruned_heads", "return_dict",
    "router_aux_loss_coef", "router_jitter_noise", "sep_token_id", "task_specific_params", "tie_encoder_decoder",
    "tokenizer_class", "torch_dtype", "transformers_version", "use_cache", "num_mtp_modules",
    "mtp_transformer_layers", "initializer_factor", "num_nextn_predict_layers",
})

# Keys of the text config that are read and checked.
KNOWN = frozenset({
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "rope_theta", "rotary_dim", "partial_rotary_factor", "rope_parameters", "rope_scaling", "rope_type",
    "max_position_embeddings", "tie_word_embeddings", "intermediate_size", "dense_intermediate_size",
    "shared_intermediate_size", "num_local_experts", "num_experts", "n_routed_experts", "num_experts_per_tok",
    "n_shared_experts", "num_shared_experts", "routed_scaling_factor", "scoring_func", "use_routing_bias",
    "norm_topk_prob", "n_group", "topk_group", "hidden_act", "swiglu_alpha", "swiglu_limit", "use_gemma_norm",
    "use_qk_norm", "qk_norm_type", "attention_bias", "mlp_bias", "moe_layer_freq", "sparse_attention_config",
    "layer_types", "mlp_layer_types", "index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks",
    "index_local_blocks", "index_init_blocks", "sliding_window", "attention_output_gate",
})

# Keys of `sparse_attention_config` that are read and checked.
KNOWN_SPARSE = frozenset({
    "use_sparse_attention", "sparse_index_dim", "sparse_num_index_heads", "sparse_topk_blocks", "sparse_block_size",
    "sparse_score_type", "sparse_init_block", "sparse_local_block", "sparse_attention_freq",
    "sparse_disable_index_value",
})

# Keys of `rope_parameters` that are read and checked.
KNOWN_ROPE = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor"})
