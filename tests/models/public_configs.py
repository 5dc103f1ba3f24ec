"""MiniMax-M3's and M3.1's config.json by their public fields."""

from __future__ import annotations

from typing import Any

_LAYERS = 60


def m3_config(*, all_sparse: bool = False, quantization: dict[str, Any] | None = None) -> dict[str, Any]:
    """M3's config.json; with `all_sparse` the index branch of M3.1, in every layer."""
    sparse = [1] * _LAYERS if all_sparse else [0] * 3 + [1] * (_LAYERS - 3)
    config: dict[str, Any] = {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "auto_map": {"AutoConfig": "configuration_minimax_m3_vl.MiniMaxM3VLConfig"},
        "model_type": "minimax_m3_vl",
        "image_token_index": 200025,
        "video_token_index": 200026,
        "projector_hidden_size": 6144,
        "multimodal_projector_bias": True,
        "image_grid_pinpoints": "[(336, 336)]",
        "img_token_compression_config": {"image_token_compression_method": "patch_merge", "spatial_merge_size": 2},
        "torch_dtype": "bfloat16",
        "transformers_version": "4.52.4",
        "vision_config": {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "patch_size": 14},
        "text_config": {
            "architectures": ["MiniMaxM3SparseForCausalLM"],
            "model_type": "minimax_m3",
            "vocab_size": 200064,
            "hidden_size": 6144,
            "intermediate_size": 3072,
            "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 1048576,
            "rms_norm_eps": 1e-06,
            "use_gemma_norm": True,
            "attention_output_gate": False,
            "rope_theta": 5000000,
            "rotary_dim": 64,
            "partial_rotary_factor": 0.5,
            "hidden_act": "swigluoai",
            "use_qk_norm": True,
            "qk_norm_type": "per_head",
            "tie_word_embeddings": False,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "routed_scaling_factor": 2.0,
            "router_aux_loss_coef": 0.001,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "num_mtp_modules": 7,
            "num_nextn_predict_layers": 1,
            "moe_layer_freq": [0] * 3 + [1] * (_LAYERS - 3),
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_index_dim": 128,
                "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 16,
                "sparse_block_size": 128,
                "sparse_score_type": "max",
                "sparse_init_block": 0,
                "sparse_local_block": 1,
                "sparse_attention_freq": sparse,
                "sparse_disable_index_value": sparse,
            },
        },
    }
    return config if quantization is None else config | {"quantization_config": quantization}


def mxfp8_config() -> dict[str, Any]:
    """M3-MXFP8's quantization_config: every router and every linear of the tower is listed as ignored."""
    ignored = ["lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp"]
    ignored += [f"model.layers.{layer}.block_sparse_moe.gate" for layer in range(3, _LAYERS)]
    return {
        "quant_method": "mxfp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [1, 32],
        "ignored_layers": ignored,
    }


def m31_config() -> dict[str, Any]:
    """M3.1-Flash's quantization_config."""
    return mxfp8_config() | {"moe_quant_algo": "NVFP4", "moe_quant_format": "nvfp4-pack-quantized"}


def modelopt_config() -> dict[str, Any]:
    """hf_quant_config.json of M3 in NVFP4: a map that names every quantised linear."""
    layers: dict[str, Any] = {}
    for layer in range(_LAYERS):
        stem = f"language_model.model.layers.{layer}."
        index = ["index_q_proj", "index_k_proj"] if layer >= 3 else []
        names = [f"self_attn.{p}" for p in ("q_proj", "k_proj", "v_proj", "o_proj", *index)]
        mlp = "block_sparse_moe.shared_experts" if layer >= 3 else "mlp"
        names += [f"{mlp}.{p}_proj" for p in ("gate", "up", "down")]
        layers |= {stem + name: {"quant_algo": "MXFP8", "group_size": 32} for name in names}
        for expert in range(128 if layer >= 3 else 0):
            for part in ("w1", "w2", "w3"):
                name = f"{stem}block_sparse_moe.experts.{expert}.{part}"
                layers[name] = {"quant_algo": "NVFP4", "group_size": 16}
    return {
        "producer": {"name": "modelopt", "version": "0.44.0"},
        "quantization": {
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_quant_algo": None,
            "exclude_modules": ["lm_head", "vision_tower*", "*.block_sparse_moe.gate"],
            "quantized_layers": layers,
        },
    }
