"""The head of a Harmony message, which says what the message is, and the arguments when it is a call.

``<|start|>role to=recipient<|channel|>channel to=recipient <|constrain|>type<|message|>``: the role is the
assistant's (and stands in the prompt for the first message), the recipient may stand in either place, the
type says nothing that matters here. A head without ``<|message|>`` is text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from render_tier.core.body import Calls, Status
from render_tier.core.header_call import HeaderCall, HeaderCallFormat

_CHANNEL: Final = "<|channel|>"
_START: Final = "<|start|>"
_RECIPIENT: Final = re.compile(r"(?:\b|(?<=assistant)|(?<=commentary)|(?<=analysis))to=(\S+)")
_BUILT_IN: Final = frozenset({"python", "browser", "container"})
"""Recipients that are tools of the model's own, not functions of the request."""


@dataclass(frozen=True)
class HarmonyMessageFormat(HeaderCallFormat):
    """``calls``: messages to functions are calls; otherwise they are not shown, as they are addressed to no
    reader."""

    calls: bool = True

    def open(self, marker: str, hold_limit: int) -> HarmonyMessage:
        return HarmonyMessage(self, marker, hold_limit)

    def load(self, state: Any, hold_limit: int) -> HarmonyMessage:
        message = HarmonyMessage(self, "", hold_limit)
        message.restore(state)
        return message


class HarmonyMessage(HeaderCall):
    """The body parser (`body.RoutedBody`) of `HarmonyMessageFormat`. Its routes: "analysis", "message" (text
    of the answer), "ignored", and "call" after a call's arguments."""

    def __init__(self, fmt: HarmonyMessageFormat, marker: str, hold_limit: int) -> None:
        super().__init__(fmt, marker, hold_limit)
        self._calls = fmt.calls
        self.route = "call"

    def feed(self, text: str, start: int, calls: Calls) -> int:
        if not self.committed and not self.marker and not _may_be_head(self.raw + text[start:]):
            self.status = Status.FAILED
            return start
        return super().feed(text, start, calls)

    def header_over(self, header: str, calls: Calls) -> None:
        role, _, rest = (self.marker + header).partition(_CHANNEL)
        rest = rest.partition("<|constrain|>")[0]
        to = _RECIPIENT.search(rest) or _RECIPIENT.search(role.partition("<|constrain|>")[0])
        recipient = to[1].partition("<|")[0].rpartition("to=")[2] if to else None
        function = recipient is not None and _is_function(recipient)
        author = role.removeprefix(_START).partition("to=")[0].strip()
        words = rest.partition(_CHANNEL)[0].split(maxsplit=1)
        if author not in ("", "assistant"):
            self._routed("ignored")
        elif recipient is not None and function:
            if self._calls:
                self.commit(recipient.removeprefix("functions."), "", calls)
            else:
                self._routed("ignored")
        else:
            self._routed(_channel(words[0] if words else "", recipient))

    def _routed(self, route: str) -> None:
        self.route = route
        self.status = Status.DONE


def _channel(name: str, recipient: str | None) -> str:
    if name == "analysis":
        return "analysis"
    return "message" if name == "final" or (name == "commentary" and recipient is None) else "ignored"


def _is_function(recipient: str) -> bool:
    if recipient.startswith("functions."):
        return recipient != "functions."
    return recipient != "assistant" and recipient.partition(".")[0] not in _BUILT_IN


def _may_be_head(text: str) -> bool:
    """Whether an output that starts so can go on to be a head: its role stands in the prompt."""
    text = text.lstrip()
    return text.startswith(("to=", "<|")) or "to=".startswith(text) or "<|".startswith(text)
