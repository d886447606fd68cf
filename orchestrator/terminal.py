"""What the commands share that ask a running orchestrator: its answers, its errors, tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


def require_ok(reply: httpx.Response) -> None:
    """Raises ``ValueError`` with the error's own message."""
    if reply.status_code != 200:
        raise ValueError(f"{reply.status_code} {_message(reply.text)}")


def _message(body: str) -> str:
    """Of an error body, or what there is."""
    try:
        message: str = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return body[:200]
    return message


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
