"""The SSE decoder is blind to how bytes are cut, and bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.sse import BOM, DONE_FRAME, NotAnEventStream, SSEDecoder, StreamTooLarge, frame

MAX = 10_000


def decode(pieces: list[bytes], limit: int = MAX) -> list[bytes]:
    decoder = SSEDecoder(limit)
    return [payload for piece in pieces for payload in decoder.feed(piece)]


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(ends)]


TEXT = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)
ODD_LINES = ["", "", "data", "data:", "data:x", ": comment", "event: x", "id: 1", "retry: 5", "id"]
LINES = st.lists(
    st.one_of(TEXT.map("data: {}".format), TEXT.map(":{}".format), st.sampled_from(ODD_LINES)), max_size=20
)
ENDINGS = st.sampled_from([b"\n", b"\r", b"\r\n"])


def reference(lines: list[str]) -> list[bytes]:
    """The grammar said slowly, over lines that are already apart."""
    events: list[bytes] = []
    data: list[str] = []
    for line in lines:
        if line == "":
            if data:
                events.append("\n".join(data).encode())
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif line == "data":
            data.append("")
    return events


@given(LINES, st.data(), st.booleans())
def test_every_cut_gives_the_events_of_the_whole(lines: list[str], data: st.DataObject, bom: bool) -> None:
    ends = [data.draw(ENDINGS) for _ in lines]
    # A line end CR before an empty line that ends with LF would be one CRLF.
    stream = b""
    for line, end in zip(lines, ends, strict=True):
        if line == "" and end == b"\n" and stream.endswith(b"\r"):
            end = b"\r\n"
            stream += b"\r" if not stream else b""
            stream = stream[:-1] + b"\n"
        stream += line.encode() + end
    if bom:
        stream = BOM + stream
    elif lines and lines[0].startswith("\ufeff"):
        return
    expected = reference(lines)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=30))
    assert decode([stream]) == expected
    assert decode(pieces_of(stream, cuts)) == expected
    assert decode([bytes([byte]) for byte in stream]) == expected


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_any_bytes_give_the_same_for_every_cut(stream: bytes, cuts: list[int]) -> None:
    assert outcome(pieces_of(stream, cuts)) == outcome([stream])


def outcome(pieces: list[bytes]) -> list[bytes] | str:
    try:
        return decode(pieces)
    except NotAnEventStream as error:
        return str(error)


@pytest.mark.parametrize("line", ["dataset: 1", '{"error": 1}', "{}data: x", "HTTP/1.1 500", "\ufffd"])
def test_a_damaged_line_is_refused_not_skipped(line: str) -> None:
    with pytest.raises(NotAnEventStream):
        decode([f"data: a\n\n{line}\n\ndata: b\n\n".encode()])


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_frames_come_back(text: str) -> None:
    payload = text.encode()
    joined = payload.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    assert decode([frame(payload)]) == [joined]
    assert decode([b"\xef\xbb\xbf" + frame(payload)]) == [joined]


def test_done_frame() -> None:
    assert decode([DONE_FRAME]) == [b"[DONE]"]


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: " + b"x" * 200],
        [b"x" * 60, b"x" * 60],
        [b"data: " + b"x" * 60 + b"\n"] * 2,
        [b"data: " + b"x" * 60 + b"\n", b"data: " + b"x" * 60],
        [b"data: " + b"x" * 101 + b"\n\n"],
        [b"data\n" * 200],
    ],
)
def test_an_event_longer_than_the_bound_is_refused(pieces: list[bytes]) -> None:
    with pytest.raises(StreamTooLarge):
        decode(pieces, limit=100)


def test_many_small_events_are_not_an_event_that_is_too_large() -> None:
    assert len(decode([b"data: x\n\n" * 1000], limit=100)) == 1000
