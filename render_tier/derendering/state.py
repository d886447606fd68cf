"""``stream_state``: all that one choice's stream needs, in a few hundred bytes that any replica can go on
from.

On the wire it is ``{"v": 1, "s": base64url(tag ‖ payload)}``. The tag is a keyed hash (BLAKE2b, a MAC by
itself) of the payload: without a key it only finds damage; with a secret one nobody else can make or splice
states. Of several keys the first signs and all are accepted, so that keys can be changed while streams run.
The payload is msgpack and names what it belongs to: model and configuration (fingerprint), request (context
digest), stream (request id) and choice.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

import msgspec

from render_tier.core.events import Event
from render_tier.core.machine import Machine, SnapshotError
from render_tier.derendering.context import DIGEST_SIZE, Context
from render_tier.derendering.output import Output
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.responses import LogprobOut, StreamStateOut

VERSION: Final = 1
_TAG_SIZE: Final = 16
_FINGERPRINT_SIZE: Final = 8
_REQUEST_SIZE: Final = 8

Progress = TypeVar("Progress", bound=msgspec.Struct)


class Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """``machine`` is empty once the choice has finished: nothing more is read then. ``progress``: see
    `Stream`; left out where it is empty."""

    fingerprint: bytes
    context: bytes
    stream: bytes
    index: int
    role_sent: bool
    created: int
    tokens: int
    reasoning_tokens: int
    calls: int
    finished: bool
    stopped: bool
    named_before: int
    text_offset: int
    speller: bytes
    hidden: list[LogprobOut | None]
    machine: bytes
    progress: bytes = b""


class Stream:
    """One choice's stream between two calls. ``missed``: what its client lacks of the time before a takeover
    from another server. ``progress``: msgpack of what the writer of an API's events goes on from; empty when
    it has not begun."""

    __slots__ = (
        "created",
        "index",
        "missed",
        "named_before",
        "output",
        "progress",
        "request",
        "role_sent",
        "text_offset",
        "tokens",
    )

    def __init__(self, output: Output, request: bytes, created: int) -> None:
        self.output = output
        self.request = request
        self.index = -1  # not known before the first chunk with a choice
        self.created = created
        self.role_sent = False
        self.named_before = 0
        self.text_offset = 0
        self.tokens = 0
        self.missed: list[Event] = []
        self.progress = b""

    def progress_as(self, kind: type[Progress]) -> Progress:
        """Raises BadRequest for a state that was made up."""
        if not self.progress:
            return kind()
        try:
            return msgspec.msgpack.decode(self.progress, type=kind)
        except msgspec.MsgspecError:
            raise _refused("it is damaged") from None

    @property
    def finished(self) -> bool:
        return self.output.finished


def request_digest(request_id: str) -> bytes:
    """Stands for a stream's request id in its state."""
    return hashlib.blake2b(request_id.encode(errors="surrogatepass"), digest_size=_REQUEST_SIZE).digest()


class StateCodec:
    """Writes and reads states of one model and configuration. ``keys``: none, or secrets of any length."""

    def __init__(self, fingerprint: str, keys: Sequence[bytes]) -> None:
        self._fingerprint = hashlib.blake2b(fingerprint.encode(), digest_size=_FINGERPRINT_SIZE).digest()
        self._keys = [hashlib.blake2b(key, person=b"state-key").digest() for key in keys] or [b""]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Saved)

    def encode(self, stream: Stream) -> StreamStateOut:
        output = stream.output
        saved = (
            self._fingerprint,
            output.context.digest,
            stream.request,
            stream.index,
            stream.role_sent,
            stream.created,
            stream.tokens,
            output.reasoning_tokens,
            output.calls,
            output.finished,
            output.stopped,
            stream.named_before,
            stream.text_offset,
            output.speller.context,
            list(output.hidden),
            b"" if output.finished else output.machine.snapshot(),
        )
        payload = self._encoder.encode(saved if not stream.progress else (*saved, stream.progress))
        return StreamStateOut(
            VERSION, base64.urlsafe_b64encode(_tag(payload, self._keys[0]) + payload).decode()
        )

    def open(self, text: str, request: bytes) -> Saved:
        """Check and unpack a state of the stream ``request``. Raises BadRequest for one that is damaged or
        foreign."""
        try:
            data = base64.b64decode(text, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _refused("it is damaged") from None
        payload = data[_TAG_SIZE:]
        tag = data[:_TAG_SIZE]
        if not any(hmac.compare_digest(tag, _tag(payload, key)) for key in self._keys):
            raise _refused("it is damaged or was made with another key")
        try:
            saved = self._decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeError):
            raise _refused("it is damaged") from None
        if saved.fingerprint != self._fingerprint:
            raise _refused("it belongs to another model or configuration")
        if saved.stream != request:
            raise _refused("it belongs to another stream")
        if len(saved.context) != DIGEST_SIZE or min(saved.tokens, saved.calls, saved.text_offset) < 0:
            raise _refused("it is damaged")
        return saved

    def restore(self, saved: Saved, context: Context, eos: tuple[int, ...]) -> Stream:
        """The stream that gave this state. Raises BadRequest."""
        machine = None
        if not saved.finished:
            try:
                machine = Machine.restore(context.grammar, context.options, saved.machine)
            except SnapshotError:
                raise _refused("it is damaged") from None
        output = Output(context, eos, machine)
        output.reasoning_tokens, output.calls = saved.reasoning_tokens, saved.calls
        output.finished, output.stopped = saved.finished, saved.stopped
        output.speller.context = saved.speller
        output.hidden = deque(saved.hidden)
        stream = Stream(output, saved.stream, saved.created)
        stream.index, stream.role_sent, stream.tokens = saved.index, saved.role_sent, saved.tokens
        stream.named_before, stream.text_offset = saved.named_before, saved.text_offset
        stream.progress = saved.progress
        return stream


def refused_version(version: int) -> BadRequest:
    return _refused(f"version {version} is not known here")


def refused_incomplete() -> BadRequest:
    return _refused("v and s belong together")


def _tag(payload: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(payload, key=key, digest_size=_TAG_SIZE, person=b"stream-state").digest()


def _refused(why: str) -> BadRequest:
    return BadRequest(f"invalid stream_state: {why}", param="stream_state")
