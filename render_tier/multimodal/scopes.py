"""`mm_processor_kwargs` by what they count for: names of all media, and mappings of names of images or videos
alone. The rules are vLLM's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Json = Mapping[str, Any]
Kind = Literal["image", "video"]
SCOPES: Mapping[Kind, str] = {"image": "images_kwargs", "video": "videos_kwargs"}
_BOUNDS = (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
"""Qwen-VL's two names of the same, of which the second one counts where a mapping has both."""


def of_kind(kwargs: Json, kind: Kind) -> dict[str, Any]:
    """As they were written, without what counts for other media alone."""
    others = {scope for other, scope in SCOPES.items() if other != kind}
    return {name: value for name, value in kwargs.items() if name not in others}


def settings_for(kwargs: Json, kind: Kind) -> dict[str, Any]:
    """What is laid over the processor's settings: a scope's names go before those of all media."""
    shared = {name: value for name, value in kwargs.items() if name not in SCOPES.values()}
    return _merged(shared, kwargs.get(SCOPES[kind]) or {})


def over(usual: Json, asked: Json) -> dict[str, Any]:
    """The operator's with a request's laid over them, which go before them in either name of a bound."""
    scopes = {name: _with_bounds(asked[name]) for name in SCOPES.values() if name in asked}
    return _merged(usual, {**_with_bounds(asked), **scopes})


def _merged(before: Json, after: Json) -> dict[str, Any]:
    merged = dict(before)
    for name, value in after.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = _merged(merged[name], value) if both else value
    return merged


def _with_bounds(asked: Json) -> dict[str, Any]:
    size = asked.get("size") or {}
    return {**{bound: size[edge] for edge, bound in _BOUNDS if edge in size}, **asked}
