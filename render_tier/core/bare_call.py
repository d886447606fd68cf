"""The arguments alone, when the request names the function: the whole answer is the JSON of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from render_tier.core.body import Calls
from render_tier.core.header_call import HeaderCall, HeaderCallFormat


@dataclass(frozen=True)
class BareCallFormat(HeaderCallFormat):
    """``function``: the name."""

    function: str = ""

    def open(self, marker: str, hold_limit: int) -> BareCall:
        return BareCall(self, marker, hold_limit)

    def load(self, state: Any, hold_limit: int) -> BareCall:
        call = BareCall(self, "", hold_limit)
        call.restore(state)
        return call


class BareCall(HeaderCall):
    """The body parser (`body.Body`) of `BareCallFormat`: white space is its header."""

    def __init__(self, fmt: BareCallFormat, marker: str, hold_limit: int) -> None:
        super().__init__(fmt, marker, hold_limit)
        self._function = fmt.function

    def header_over(self, header: str, calls: Calls) -> None:
        self.commit(self._function, "", calls)
