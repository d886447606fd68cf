"""What a prefill answer must look like before its KV may be used, and the params that ask for it.

The object is opaque apart from this check: a decode engine that gets an incomplete one hangs or dies (it is
not an error there), so nothing incomplete may reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from render_tier.protocol.generate import REQUIRED_REMOTE_FIELDS

PREFILL_PARAMS: Final[Mapping[str, Any]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""Asks a prefill engine to keep its blocks for a remote decode (the fields of vLLM's NIXL connector)."""


def unusable(finish_reason: str | None, params: object, prompt_tokens: int) -> str | None:
    """Why a prefill answer cannot be handed to a decode engine, or None when it can.

    ``finish_reason`` must be ``length``: an engine that stopped for another reason has not kept the blocks.
    ``remote_num_tokens``, when reported, must not exceed the prompt: it would be another prompt's KV.
    """
    if finish_reason != "length":
        return f"prefill ended by {finish_reason!r}, not by length"
    if not isinstance(params, Mapping):
        return "prefill returned no kv_transfer_params"
    missing = [name for name in REQUIRED_REMOTE_FIELDS if params.get(name) in (None, "", [])]
    if missing:
        return f"kv_transfer_params lack {', '.join(missing)}"
    if params.get("do_remote_prefill") is not True:
        return "kv_transfer_params do not ask for a remote prefill"
    tokens = params.get("remote_num_tokens")
    if isinstance(tokens, int) and tokens > prompt_tokens:
        return f"kv_transfer_params cover {tokens} tokens of a prompt of {prompt_tokens}"
    return None


def lease_seconds(params: Mapping[str, Any], *, now: float, configured: float, fraction: float) -> float:
    """How long after ``now`` (Unix seconds) the params may still be used: a ``fraction`` of the engine's
    lease.

    The engine's own ``remote_blocks_expiry_time`` (Unix seconds) counts when it reports one and it is sooner
    than the ``configured`` lease; clocks differ between machines, so it can only shorten.
    """
    lease = configured
    expiry = params.get("remote_blocks_expiry_time")
    if isinstance(expiry, int | float) and not isinstance(expiry, bool):
        lease = min(lease, max(0.0, expiry - now))
    return lease * fraction
