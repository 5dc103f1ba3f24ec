"""Runs plans in order on a worker thread, so that the engine plans step n+1 while step n computes."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from tamis.attention.msa import SelectionRule, StepAttention
from tamis.cache.pool import RowPool
from tamis.engine.plan import StepOutput, StepPlan
from tamis.models.m3 import M3ForCausalLM
from tamis.runner.inputs import RequestStates, StepInputs
from tamis.runner.sampler import sample


class ModelRunner:
    """Implements `engine.plan.Runner` over one model and one pool.

    Args:
        kv_scales: layer → (k_scale, v_scale) of a quantised cache; see `StepAttention`.
        random_selection: see `AttentionConfig.selection`.

    Attributes:
        num_blocks: blocks of the pool, block 0 included.
    """

    def __init__(
        self,
        model: M3ForCausalLM,
        pool: RowPool,
        kv_scales: Mapping[int, tuple[float, float]] | None = None,
        *,
        random_selection: bool = False,
    ):
        self.model = model
        self.kv_scales = kv_scales or {}
        self.pool = pool
        self.num_blocks = pool.rows.shape[0]
        self.device = pool.rows.device
        self.states = RequestStates()
        config = model.config
        self._rule = SelectionRule(config.topk_blocks, config.init_blocks, config.local_blocks, random=random_selection)
        self._scale = config.head_dim**-0.5
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tamis-runner")

    def submit(self, plan: StepPlan) -> Future[StepOutput]:
        """Start a step; steps run one after the other in the order of submission."""
        return self._worker.submit(self.execute, plan)

    def execute(self, plan: StepPlan) -> StepOutput:
        """Run one step and return its tokens."""
        self.states.apply(plan)
        if not plan.scheduled:
            return StepOutput(step_id=plan.step_id, sampled={})
        with torch.inference_mode():
            inputs = self.states.inputs(plan.scheduled, self.device)
            logits = self.forward(inputs)
            finite = torch.isfinite(logits).all(dim=-1).tolist()
            # A row without probabilities ends its own request, not its neighbours'.
            ids = [r for r, is_finite in zip(inputs.sampled_ids, finite, strict=True) if is_finite]
            states = [self.states[r] for r in ids]
            tokens = sample(logits if all(finite) else logits[finite], states) if ids else []
        for state, token in zip(states, tokens, strict=True):
            state.append(token.token_id)
        return StepOutput(
            step_id=plan.step_id,
            sampled=dict(zip(ids, tokens, strict=True)),
            failed={
                r: f"The model's logits after token {len(self.states[r].token_ids)} are not finite numbers."
                for r in inputs.sampled_ids
                if r not in ids
            },
        )

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """fp32 logits [N, vocab_size] of the step's sampled rows."""
        attention = StepAttention(self.pool, inputs.tables, self._rule, self._scale, kv_scales=self.kv_scales)
        hidden = self.model(inputs.token_ids, inputs.tables.positions, attention, inputs.num_positions)
        return self.model.compute_logits(hidden[inputs.sample_rows])

    def reset(self) -> None:
        """Forget every request (after a failed step)."""
        self.states.clear()

    def shutdown(self) -> None:
        """Wait for pending steps and end the worker."""
        self._worker.shutdown(wait=True)
