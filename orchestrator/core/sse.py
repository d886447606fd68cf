"""Server-sent events: an incremental decoder (bytes in, data payloads out) and the frames we send.

Follows the WHATWG event stream grammar: lines end with LF, CR or CRLF; a line that starts with a colon is a
comment; a blank line ends an event; several ``data`` lines of one event are joined by LF; a leading byte
order mark is dropped. Only ``data`` matters to us, so the grammar's other fields are skipped. A line that is
none of them is refused, where the grammar would have it skipped: it is a damaged line, and skipping it would
lose tokens without a word. Payloads stay bytes: a character that is split between two reads is whole again
before anyone decodes it.
"""

from __future__ import annotations

from typing import Final

BOM: Final = b"\xef\xbb\xbf"
DONE: Final = b"[DONE]"
DONE_FRAME: Final = b"data: [DONE]\n\n"
KEEPALIVE_FRAME: Final = b": keep-alive\n\n"
"""A comment: clients skip it, proxies see traffic."""


class StreamTooLarge(Exception):
    """The peer sent an event longer than the bound."""


class NotAnEventStream(Exception):
    """The peer sent a line that no event stream has."""


FIELDS: Final = frozenset({b"data", b"event", b"id", b"retry"})


class SSEDecoder:
    """Feed it what the socket gives, in any pieces; it returns the payloads completed by that piece.

    ``max_event_bytes`` bounds what is held for one unfinished event (its lines so far and its data).
    An unfinished event at the end of the stream is not an event, by the grammar.
    """

    __slots__ = ("_after_cr", "_data", "_held", "_line", "_line_bytes", "_max", "_started")

    def __init__(self, max_event_bytes: int) -> None:
        self._max = max_event_bytes
        self._line: list[bytes] = []
        self._line_bytes = 0
        self._data: list[bytes] = []
        self._held = 0
        self._after_cr = False
        self._started = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The payloads of the events that ``piece`` completes. Raises ``StreamTooLarge`` and
        ``NotAnEventStream``."""
        if (
            self._started
            and not (self._line_bytes or self._data or self._after_cr)
            and piece.startswith(b"data: ")
            and piece.endswith(b"\n\n")
            and piece.find(b"\n") == len(piece) - 2
            and b"\r" not in piece
            and len(piece) <= self._max
        ):
            # What engines send nearly always: one event, one line, in one piece.
            return [piece[6:-2]]
        if self._after_cr and piece:
            self._after_cr = False
            if piece.startswith(b"\n"):
                piece = piece[1:]
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = piece.split(b"\n")
        rest = lines.pop()
        payloads: list[bytes] = []
        for end in lines:
            if self._line_bytes:
                self._line.append(end)
                line = b"".join(self._line)
                self._line.clear()
                self._line_bytes = 0
            else:
                line = end
            self._take_line(line, payloads)
        if rest:
            self._line.append(rest)
            self._line_bytes += len(rest)
            if self._line_bytes + self._held > self._max:
                raise StreamTooLarge(f"a server-sent event exceeds {self._max} bytes")
        return payloads

    def _take_line(self, line: bytes, payloads: list[bytes]) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(BOM)
        if not line:
            if self._data:
                payloads.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
                self._held = 0
            return
        if line.startswith(b"data:"):
            value = line[6:] if line.startswith(b"data: ") else line[5:]
        elif line == b"data":
            value = b""
        elif line.startswith(b":") or line.partition(b":")[0] in FIELDS:
            return
        else:
            raise NotAnEventStream(f"a line of an event stream begins with {line[:20]!r}")
        self._held += len(value) + 1
        if self._held > self._max:
            raise StreamTooLarge(f"a server-sent event exceeds {self._max} bytes")
        self._data.append(value)


def named_frame(name: bytes, payload: bytes) -> bytes:
    """One event with a name. ``payload`` is one line, as JSON that we write is."""
    return b"event: " + name + b"\ndata: " + payload + b"\n\n"


def frame(payload: bytes) -> bytes:
    """One event. A payload with line breaks becomes several ``data`` lines, which the decoder joins again."""
    if b"\n" in payload or b"\r" in payload:
        lines = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"
    return b"data: " + payload + b"\n\n"
