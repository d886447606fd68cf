"""How many items of each kind of media a prompt may have, in the forms of vLLM's `--limit-mm-per-prompt`: a
count, or an object that has it beside sizes, for engines to measure their memory by."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

DEFAULT_LIMIT = 999
"""As in vLLM."""
SIZES = {"image": ("width", "height"), "video": ("num_frames", "width", "height"), "audio": ("length",)}


def _counts(limits: Any) -> Any:
    if not isinstance(limits, dict):
        return limits
    return {kind: _count(kind, said) for kind, said in limits.items()}


def _count(kind: Any, said: Any) -> Any:
    if not isinstance(said, dict) or kind not in SIZES:
        return said
    names = "count", *SIZES[kind]
    for name, value in said.items():
        if name not in names:
            raise ValueError(f"{kind}: {name!r} is not known; {', '.join(names)} are")
        if name != "count" and value is not None and (type(value) is not int or value < 1):
            raise ValueError(f"{kind}: {name} is a whole number above 0")
    return said.get("count", DEFAULT_LIMIT)


MediaLimits = Annotated[
    dict[Literal["image", "video", "audio"], Annotated[int, Field(ge=0)]], BeforeValidator(_counts)
]
"""Counts by kind."""
