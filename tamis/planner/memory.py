"""How many blocks the pool gets."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from tamis.errors import ConfigError

CPU_POOL_SHARE = 0.25


@dataclass(frozen=True)
class PoolPlan:
    """The pool's size and the context it allows.

    Attributes:
        num_blocks: with the null block.
        max_model_len: longest context in tokens.
        reason: why this many, for the start-up card.
    """

    num_blocks: int
    max_model_len: int
    reason: str


def available_host_bytes() -> int:
    """Memory that this process may still take: MemAvailable, or what is left to its container when that is less.

    Elsewhere than on Linux: half of what is installed.
    """
    limits = []
    with contextlib.suppress(OSError):
        meminfo = Path("/proc/meminfo").read_text()
        limits += [int(kib) * 1024 for kib in re.findall(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)]
    with contextlib.suppress(OSError):
        maximum, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text().strip() for name in ("max", "current"))
        limits += [int(maximum) - int(used)] if maximum != "max" else []
    return min(limits, default=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)


def plan_pool(
    *,
    row_bytes: int,
    block_tokens: int,
    model_max_len: int,
    asked_max_len: int | None,
    max_num_seqs: int,
    free_bytes: int,
    asked_bytes: int | None,
    asked_blocks: int | None,
    share: float = CPU_POOL_SHARE,
) -> PoolPlan:
    """Size the pool from what was asked, else from a share of free memory.

    Args:
        row_bytes: bytes a block over all layers.
        model_max_len, asked_max_len: the model's context and the user's, in tokens.
        max_num_seqs: more than max_num_seqs full contexts are never held.
        free_bytes: memory free for the pool; `share` of it is used.
        asked_bytes, asked_blocks: what the user fixed, if anything.

    Raises:
        ConfigError: the asked context exceeds the model's or does not fit the pool.
    """
    if asked_max_len is not None and asked_max_len > model_max_len:
        raise ConfigError(
            f"--max-model-len is {asked_max_len}, but the model was made for {model_max_len} tokens.",
            param="max_model_len",
            hint=f"Use {model_max_len} or less.",
        )
    max_len = asked_max_len or model_max_len
    blocks_a_request = -(-max_len // block_tokens)
    wanted = max_num_seqs * blocks_a_request
    if asked_blocks is not None:
        blocks, reason = asked_blocks, "--num-blocks-override"
    else:
        budget = asked_bytes if asked_bytes is not None else int(share * free_bytes)
        blocks = min(wanted, budget // row_bytes)
        limit = "--kv-cache-memory-bytes" if asked_bytes is not None else f"{share:.0%} of free memory"
        reason = "enough for --max-num-seqs" if blocks == wanted else limit
    if blocks < blocks_a_request:
        fits = blocks * block_tokens
        if asked_max_len is not None or asked_blocks is not None or asked_bytes is not None or fits == 0:
            raise ConfigError(
                f"The KV pool holds {blocks} blocks ({fits} tokens) by {reason}, but one request of {max_len} tokens "
                f"needs {blocks_a_request} blocks of {row_bytes} bytes.",
                param="max_model_len",
                hint="Lower --max-model-len, raise --kv-cache-memory-bytes or choose a smaller --kv-cache-dtype.",
            )
        max_len, reason = fits, f"{reason}; context cut from {max_len} tokens to fit"
    return PoolPlan(num_blocks=blocks + 1, max_model_len=max_len, reason=reason)
