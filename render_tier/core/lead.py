"""Text that a format may put first, like the name of a channel: dropped where it stands, else nothing
happened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from render_tier.core.body import Calls, Status


@dataclass(frozen=True)
class LeadFormat:
    """``lead``: the text, white space at its end included. Where the text ends in the middle of it, it counts
    as there once its visible characters are."""

    lead: str

    def open(self, marker: str, hold_limit: int) -> Lead:
        return Lead(self.lead)

    def load(self, state: Any, hold_limit: int) -> Lead:
        body = Lead(self.lead)
        body.raw = msgspec.convert(state, str)
        if len(body.raw) >= len(self.lead) or not self.lead.startswith(body.raw):
            raise ValueError("impossible lead")
        return body


class Lead:
    """The body parser (`body.Body`) of `LeadFormat`: done behind the lead, failed where another text
    stands. It
    never holds a call; the marker before it is markup."""

    def __init__(self, lead: str) -> None:
        self.status = Status.RUNNING
        self.committed = False
        self.raw = ""
        self._lead = lead

    def feed(self, text: str, start: int, calls: Calls) -> int:
        end = start
        while end < len(text):
            if text[end] != self._lead[len(self.raw)]:
                self.status = Status.FAILED
                return end
            self.raw += text[end]  # bounded by the lead
            end += 1
            if len(self.raw) == len(self._lead):
                self.status = Status.DONE
                return end
        return end

    def plain(self, text: str) -> str | None:
        return None

    def finish(self, calls: Calls) -> None:
        self.status = Status.DONE if self.raw == self._lead.rstrip() else Status.FAILED

    close = finish

    def dump(self) -> str:
        return self.raw
