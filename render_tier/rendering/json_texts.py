"""The texts that a JSON-like value holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def texts_of(value: Any) -> Iterator[str]:
    """All keys and texts, at any depth."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
