"""What render says of a request, as a header of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

LONGEST: Final = 2048
"""Bytes: proxies take a few thousand for all headers together."""


def warnings_header(warnings: Sequence[str], *, most: int = LONGEST) -> bytes:
    """A list in JSON and ASCII; where that is longer than ``most``, of the first ones and how many more there
    are."""
    # Each takes a separator or, once in the list, the brackets.
    lengths = list(accumulate(len(json.dumps(warning)) + len(", ") for warning in warnings))
    shown = list(warnings)
    if lengths and lengths[-1] > most:
        room = most - len(json.dumps([f"and {len(warnings)} more"]))
        fitting = sum(length <= room for length in lengths)
        shown = [*warnings[:fitting], f"and {len(warnings) - fitting} more"]
    return json.dumps(shown).encode()
