"""What an operator decides about derendering. All bounds on what a client may send are here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from render_tier.core.machine import StopScope


@dataclass(frozen=True, kw_only=True)
class DerenderSettings:
    """``reasoning_parser`` and ``tool_parser``: vLLM parser names, or None for none.

    ``tool_choice_none``: a call that the model writes although tool_choice is "none" is kept as text
    ("keep") or treated as vLLM does ("drop"). ``stop_scope``: where stop strings are looked for, see
    `core.machine.MachineOptions`; likewise ``hold_limit`` and ``blank_limit``. ``max_logprobs`` -1: no
    bound. ``max_state_bytes``: longest ``stream_state`` taken, in characters of JSON; vLLM-shaped state has
    its own bound, ``max_model_len`` tokens. ``state_keys``: protect ``stream_state`` against forgery; the
    first signs, all are accepted. ``context_cache_bytes`` bounds the requests whose contexts are kept;
    ``stream_cache_*``: see `stream_cache` (0 entries: none).
    """

    reasoning_parser: str | None = None
    tool_parser: str | None = None
    default_chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tool_choice_none: Literal["keep", "drop"] = "keep"
    stop_scope: StopScope = "all"
    max_logprobs: int = 20
    max_choices: int = 16384
    max_stop_strings: int = 4
    max_prompts: int = 1024
    hold_limit: int = 65536
    blank_limit: int = 256
    context_cache_entries: int = 4096
    context_cache_bytes: int = 64 << 20
    stream_cache_entries: int = 4096
    stream_cache_bytes: int = 64 << 20
    stream_cache_seconds: float = 60.0
    max_state_bytes: int = 1 << 20
    state_keys: tuple[bytes, ...] = ()
