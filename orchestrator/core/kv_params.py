"""What a prefill answer must look like before its KV may be used, and the params that ask for it.

The object is opaque apart from this check: a decode engine that gets an incomplete one hangs or dies (it is
not an error there), so nothing incomplete may reach it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from hashlib import blake2b
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


ENGINE_ID_PREFIX: Final = "generate-tokens-"
"""Engines put this before the id that they are given."""


def missing_fields(params: Mapping[str, Any]) -> list[str]:
    """Of those without which an engine that is to pull KV hangs."""
    return [name for name in REQUIRED_REMOTE_FIELDS if params.get(name) in (None, "", [])]


def unusable(
    finish_reason: str | None, params: object, prompt_tokens: int, leg_id: str | None = None
) -> str | None:
    """Why a prefill answer cannot be handed to a decode engine, or None when it can.

    ``finish_reason`` must be ``length``: an engine that stopped for another reason has not kept the blocks.
    ``remote_num_tokens``, when reported, must not exceed the prompt, and an id that follows the engines' own
    rule must hold the id that this leg was sent under (engines may append to it): it would be another
    request's KV.
    """
    if finish_reason != "length":
        return f"prefill ended by {finish_reason!r}, not by length"
    if not isinstance(params, Mapping):
        return "prefill returned no kv_transfer_params"
    if missing := missing_fields(params):
        return f"kv_transfer_params lack {', '.join(missing)}"
    if params.get("do_remote_prefill") is not True:
        return "kv_transfer_params do not ask for a remote prefill"
    tokens = params.get("remote_num_tokens")
    if isinstance(tokens, int) and tokens > prompt_tokens:
        return f"kv_transfer_params cover {tokens} tokens of a prompt of {prompt_tokens}"
    remote_id = params["remote_request_id"]
    if leg_id is not None and str(remote_id).startswith(ENGINE_ID_PREFIX) and leg_id not in str(remote_id):
        return "kv_transfer_params name another request's KV"
    return None


def pushes(params: Mapping[str, Any]) -> bool:
    """The prefill engine writes the KV to the decode engine, which waits for it, instead of being read."""
    return params.get("transfer_mode") == "push"


def decode_leg_id(params: Mapping[str, Any], prefill_leg_id: str, fresh: str) -> str:
    """The id under which a decode with these params is sent: ``fresh``, or that of the prefill leg where KV
    is pushed. An engine that pushes finds the decode that waits for its KV by the id that both were given;
    under another one decode waits until it times out."""
    return prefill_leg_id if pushes(params) else fresh


class UsedParams:
    """Remembers the last ``max_entries`` params that were handed to a decode engine, by whose KV they name.

    Params that turn up again, from a confused engine or a proxy that caches, would be answered
    with status 200 and another request's text.
    """

    __slots__ = ("_max_entries", "_order", "_seen")

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._seen: set[bytes] = set()
        self._order: deque[bytes] = deque()

    def __len__(self) -> int:
        return len(self._seen)

    def claim(self, params: Mapping[str, Any]) -> bool:
        """Whether these may be used: true once for each."""
        named = f"{params.get('remote_engine_id')}\0{params.get('remote_request_id')}"
        # A hash takes a third of the memory of the names.
        key = blake2b(named.encode(errors="surrogatepass"), digest_size=16).digest()
        if key in self._seen:
            return False
        self._seen.add(key)
        self._order.append(key)
        if len(self._order) > self._max_entries:
            self._seen.remove(self._order.popleft())
        return True


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
