"""Block scores of the index branch: `score[t, h, b] = max over visible j in block b of q[t, h] · k[j]`, fp32."""

from tamis.kernels.index_score.cpu import block_scores

__all__ = ["block_scores"]
