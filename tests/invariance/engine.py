"""A small dummy MSA engine that tests run requests through."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tamis.config import AttentionConfig, EngineConfig
from tamis.engine.core import EngineCore
from tamis.engine.messages import EngineRequest, RequestDelta
from tamis.engine.sampling_params import SamplingParams
from tamis.runner import load_engine

VOCAB = 211
CONFIG = {
    "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
    "torch_dtype": "bfloat16",
    "text_config": {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rotary_dim": 16,
        "rope_theta": 10000.0,
        "intermediate_size": 40,
        "dense_intermediate_size": 96,
        "shared_intermediate_size": 40,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
        "moe_layer_freq": [0, 1, 1],
        "sparse_attention_config": {
            "sparse_num_index_heads": 2,
            "sparse_index_dim": 32,
            "sparse_topk_blocks": 3,
            "sparse_attention_freq": [0, 1, 1],
        },
    },
}


@dataclass(frozen=True)
class Result:
    """What a request ended with: tokens, their log probabilities (exact floats), why, and its prefix hit."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str | None
    num_cached_tokens: int


class SmallEngine:
    """One engine of `CONFIG` with dummy weights; each `run` takes a list of requests to their ends."""

    def __init__(
        self,
        folder: Path,
        *,
        index_dtype: str = "auto",
        selection: str = "model",
        overrides: dict | None = None,
        **config,
    ):
        (folder / "config.json").write_text(json.dumps(CONFIG))
        config.setdefault("num_blocks_override", 200)
        self.config = EngineConfig(
            model=str(folder),
            load_format="dummy",
            hf_overrides=overrides or {},
            attention_config=AttentionConfig(indexer_kv_dtype=index_dtype, selection=selection),
            **config,
        )
        runner, info = load_engine(self.config, lambda stage, percent: None)
        self.runner = runner
        self.info = info
        self.core = EngineCore(self.config, runner, info)

    def run(self, requests: list[EngineRequest]) -> dict[str, Result]:
        """Add all requests, step until they end; checks that no block leaks."""
        results: dict[str, Result] = {}
        for request in requests:
            self.core.add_request(request)
            results[request.request_id] = Result([], [], None, 0)
        while self.core.has_unfinished():
            for delta in self.core.step():
                results[delta.request_id] = _extended(results[delta.request_id], delta)
        assert self.core.count_leaked_blocks() == 0
        stats = self.core.stats()
        assert stats.num_used_blocks == 0
        return results

    def close(self) -> None:
        """End the runner's worker."""
        self.core.shutdown()


def _extended(result: Result, delta: RequestDelta) -> Result:
    return Result(
        result.token_ids + delta.token_ids,
        result.logprobs + [p.logprob for p in delta.logprobs or []],
        delta.finish_reason,
        max(result.num_cached_tokens, delta.num_cached_tokens),
    )


def greedy(request_id: str, prompt: list[int], max_tokens: int, **sampling) -> EngineRequest:
    """A greedy request that reports exact log probabilities."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=0, ignore_eos=True, **sampling)
    return EngineRequest(request_id=request_id, prompt_token_ids=prompt, sampling=params)
