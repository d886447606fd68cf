"""A session: many streams over one connection, each opened once and held here until it is closed.

Pure message handling: a message in, its answer out; who calls it decides about connections and time. What a
stream holds is bounded as it is in a state (`core.machine`); how many there are, and what they hold together,
is bounded by a `Budget` that all sessions of a process share.

A stream gives a snapshot of itself every so many tokens and when it is asked to. With its last snapshot and
the chunks since, a client goes on anywhere else, by session or by single calls, with the same text.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec

from render_tier.derendering.context import Kind
from render_tier.derendering.derenderer import Derenderer, decoded
from render_tier.derendering.state import Stream
from render_tier.derendering.stream_cache import ENTRY_BYTES
from render_tier.derendering.streams import check_choices
from render_tier.protocol.derender import StreamStart, TokensChunk
from render_tier.protocol.errors import ApiError, BadRequest, ErrorInfo, NotFound, Unavailable
from render_tier.protocol.responses import ChatChunk, CompletionChunk, DerenderNotes, StreamStateOut
from render_tier.protocol.session import Frame, SessionChunk, StreamOpen

_encoder: Final = msgspec.json.Encoder()

KINDS: Final[Mapping[str, Kind]] = {
    "chat": "chat",
    "completions": "completion",
    "messages": "messages",
    "responses": "responses",
}
"""By endpoint."""


@functools.cache
def _decoder(max_frames: int) -> msgspec.json.Decoder[list[Frame]]:
    """Of messages of at most so many frames. It builds no list longer than that."""
    return msgspec.json.Decoder(Annotated[list[Frame], msgspec.Meta(max_length=max_frames)])


class Budget:
    """What all sessions of a process may hold together: ``max_streams`` streams and about ``max_bytes``. Safe
    for threads."""

    def __init__(self, max_streams: int, max_bytes: int) -> None:
        self.max_streams = max_streams
        self.max_bytes = max_bytes
        self.streams = 0
        self.bytes = 0
        self._lock = threading.Lock()

    def admit(self, size: int) -> None:
        """Raises Unavailable when there is no room."""
        with self._lock:
            if self.streams >= self.max_streams:
                raise Unavailable(f"{self.max_streams} streams are open here, which is the most")
            if self.bytes + size > self.max_bytes:
                raise Unavailable(f"the open streams hold {self.bytes} bytes: there is no room for another")
            self.streams += 1
            self.bytes += size

    def resize(self, change: int) -> None:
        with self._lock:
            self.bytes += change

    def release(self, size: int) -> None:
        with self._lock:
            self.streams -= 1
            self.bytes -= size


OnClose = Callable[[int], None]
"""Called once, when a stream ends, with the HTTP status that it would have had."""


@dataclass(slots=True)
class _Held:
    stream: Stream
    request_id: str
    model: str
    prompt_tokens: int | None
    size: int
    used: float
    on_close: OnClose
    saved_at: int = 0
    """Tokens that the last snapshot knew of."""


class AnswerOut(msgspec.Struct, omit_defaults=True, gc=False):
    """`protocol.session.Answer` as it is written."""

    stream: int
    chunk: ChatChunk | CompletionChunk | None = None
    events: list[Any] | None = None
    derender: DerenderNotes | None = None
    stream_state: StreamStateOut | None = None
    error: ErrorInfo | None = None


def encoded(answers: list[AnswerOut]) -> bytes:
    """One message; empty for no answers."""
    return _encoder.encode(answers) if answers else b""


OPENING: Final = 16
"""Opening a stream takes as long as reading so many tokens, and one more for every so many bytes:"""
BYTES_PER_TOKEN: Final = 256


def parts(frames: Sequence[Frame], most: int) -> Iterator[tuple[list[Frame], int]]:
    """Frames in order, in parts of at most about ``most`` tokens' work, each with its weight. A single frame
    may weigh more."""
    part: list[Frame] = []
    total = 0
    for frame in frames:
        weight = 1
        if frame.chunk is not None:
            weight = max(1, sum(len(choice.token_ids or ()) for choice in frame.chunk.choices))
        if (start := frame.open) is not None:
            raw = (start.request, start.prompt_token_ids, start.stream_state)
            weight += OPENING + sum(memoryview(value).nbytes for value in raw) // BYTES_PER_TOKEN
        if part and total + weight > most:
            yield part, total
            part, total = [], 0
        part.append(frame)
        total += weight
    if part:
        yield part, total


class Session:
    """``max_frames``: how many a message may hold. ``snapshot_tokens``: how many tokens a stream reads before
    it gives its next snapshot.
    ``idle_seconds``: how long a stream may rest before it is forgotten. ``clock`` gives seconds. ``on_open``
    is told of each stream that begins."""

    def __init__(
        self,
        derenderer: Derenderer,
        budget: Budget,
        *,
        max_frames: int,
        snapshot_tokens: int,
        idle_seconds: float,
        clock: Callable[[], float],
        on_open: Callable[[StreamOpen], OnClose] = lambda _start: lambda _status: None,
    ) -> None:
        self._derenderer = derenderer
        self._budget = budget
        self._frames = _decoder(max_frames)
        self._snapshot_tokens = snapshot_tokens
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._on_open = on_open
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._closed = False
        self.moving = False
        """Set from outside: no stream is opened any more."""

    def __len__(self) -> int:
        return len(self._held)

    def frames(self, message: bytes | str) -> list[Frame]:
        """The frames of a message. Raises ApiError for one that is no array of frames, or of too many.
        Touches nothing of the session: safe for threads."""
        return decoded(self._frames, message)

    def answers(self, frames: Sequence[Frame]) -> list[AnswerOut]:
        """The answers to those frames that ask for one. What is wrong with a stream is said in its answer."""
        now = self._clock()
        self._forget_idle(now)
        answers = [answer for frame in frames if (answer := self._frame(frame, now)) is not None]
        if self._closed:  # in the meantime, from another thread
            self.close()
        return answers

    def refused(self, frames: Sequence[Frame], error: ApiError) -> list[AnswerOut]:
        """The answers where ``error`` kept these frames from being worked on: their streams are closed."""
        for frame in frames:
            self._drop(frame.stream, error.status)
        return [AnswerOut(frame.stream, error=error.body().error) for frame in frames]

    def receive(self, message: bytes | str) -> bytes:
        """The answer to one message, worked on at one go; empty when it asks for none. Raises ApiError as
        `frames` does."""
        return encoded(self.answers(self.frames(message)))

    def close(self) -> None:
        """Let go of every stream, and of those that a call of `answers` is about to open."""
        self._closed = True
        for number in list(self._held):
            self._drop(number)

    def _frame(self, frame: Frame, now: float) -> AnswerOut | None:
        try:
            if frame.open is not None:
                self._open(frame.stream, frame.open, frame.chunk, now)
            elif frame.stream not in self._held:
                if frame.close and frame.chunk is None and not frame.snapshot:
                    return None
                raise NotFound(f"stream {frame.stream} is not open in this session", param="stream")
            held = self._held[frame.stream]
            held.used = now
            self._held.move_to_end(frame.stream)
            answer = AnswerOut(frame.stream)
            if frame.chunk is not None:
                self._read(held, frame.chunk, answer)
            due = held.stream.tokens - held.saved_at >= self._snapshot_tokens
            if frame.snapshot or (due and not held.stream.finished):
                self._save(held, answer)
        except ApiError as error:
            self._drop(frame.stream, error.status)
            return AnswerOut(frame.stream, error=error.body().error)
        except BaseException:
            self._drop(frame.stream, 500)
            raise
        if frame.close:
            self._drop(frame.stream)
        silent = frame.open is None and frame.chunk is None and not frame.snapshot
        return None if silent else answer

    def _open(self, number: int, start: StreamOpen, chunk: SessionChunk | None, now: float) -> None:
        if number in self._held:
            raise BadRequest(f"stream {number} is open already", param="stream")
        if self.moving:
            raise Unavailable("this server is about to stop")
        model = self._derenderer.served_name(start.model)
        stream = self._derenderer.streams.begin(
            KINDS[start.endpoint],
            StreamStart(
                start.stream_state, start.request, start.prompt_token_ids, start.prompt_tokens, start.context
            ),
            start.request_id,
            start.created,
            0 if chunk is None else sum(len(choice.token_ids or ()) for choice in chunk.choices),
        )
        size = ENTRY_BYTES + stream.output.context.size
        self._budget.admit(size)
        self._held[number] = _Held(
            stream,
            start.request_id,
            model,
            start.prompt_tokens,
            size,
            now,
            self._on_open(start),
            stream.tokens,
        )

    def _read(self, held: _Held, chunk: SessionChunk, answer: AnswerOut) -> None:
        whole = TokensChunk(
            request_id=held.request_id,
            choices=chunk.choices,
            usage=chunk.usage,
            prompt_token_ids=chunk.prompt_token_ids,
            metrics=chunk.metrics,
            position=chunk.position,
        )
        check_choices(whole, "a session")
        out, answer.derender = self._derenderer.streams.read(
            held.stream, whole, held.prompt_tokens, held.model
        )
        if isinstance(out, list):
            answer.events = out
        else:
            answer.chunk = out

    def _save(self, held: _Held, answer: AnswerOut) -> None:
        state = answer.stream_state = self._derenderer.streams.state(held.stream)
        held.saved_at = held.stream.tokens
        size = ENTRY_BYTES + held.stream.output.context.size + 2 * len(state.s)
        self._budget.resize(size - held.size)
        held.size = size

    def _forget_idle(self, now: float) -> None:
        while self._held:
            number, held = next(iter(self._held.items()))
            if held.used + self._idle_seconds > now:
                return
            self._drop(number)

    def _drop(self, number: int, status: int = 200) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            self._budget.release(held.size)
            held.on_close(status)
