"""What render says of a request, as a header of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

LONGEST: Final = 2048
"""Bytes: proxies take a few thousand for all headers together."""


def warnings_header(warnings: Sequence[str], *, most: int = LONGEST) -> bytes:
    """A list in JSON and ASCII; where that is longer than ``most``, of the first ones and how many more there
    are."""
    for left_out in range(len(warnings) + 1):
        shown = list(warnings[: len(warnings) - left_out])
        text = json.dumps([*shown, f"and {left_out} more"] if left_out else shown)
        if len(text) <= most:
            break
    return text.encode()
