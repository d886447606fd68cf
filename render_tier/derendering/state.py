"""``stream_state``: all that one choice's stream needs, in a few hundred bytes that any replica can go on
from.

On the wire it is ``{"v": 1, "s": base64url(tag ‖ payload)}``. The tag is a keyed hash of the payload: with
an empty key it only finds damage; with a secret one nobody else can make or splice states. The payload is
msgpack and names the model and configuration (fingerprint) and the request (context digest) that it belongs
to.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections import deque
from typing import Final

import msgspec

from render_tier.core.machine import Machine, SnapshotError
from render_tier.derendering.context import DIGEST_SIZE, Context
from render_tier.derendering.output import Output
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.responses import LogprobOut, StreamStateOut

VERSION: Final = 1
_TAG_SIZE: Final = 16
_FINGERPRINT_SIZE: Final = 8


class Saved(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """``machine`` is empty once the choice has finished: nothing more is read then."""

    fingerprint: bytes
    context: bytes
    index: int
    role_sent: bool
    created: int
    tokens: int
    reasoning_tokens: int
    calls: int
    finished: bool
    named_before: int
    text_offset: int
    speller: bytes
    hidden: list[LogprobOut | None]
    machine: bytes


class Stream:
    """One choice's stream between two calls."""

    __slots__ = ("created", "index", "named_before", "output", "role_sent", "text_offset", "tokens")

    def __init__(self, output: Output, created: int) -> None:
        self.output = output
        self.index = -1  # not known before the first chunk with a choice
        self.created = created
        self.role_sent = False
        self.named_before = 0
        self.text_offset = 0
        self.tokens = 0


class StateCodec:
    """Writes and reads states of one model and configuration."""

    def __init__(self, fingerprint: str, key: bytes) -> None:
        self._fingerprint = hashlib.blake2b(fingerprint.encode(), digest_size=_FINGERPRINT_SIZE).digest()
        self._key = key[:64]
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Saved)

    def encode(self, stream: Stream) -> StreamStateOut:
        output = stream.output
        payload = self._encoder.encode(
            Saved(
                self._fingerprint,
                output.context.digest,
                stream.index,
                stream.role_sent,
                stream.created,
                stream.tokens,
                output.reasoning_tokens,
                output.calls,
                output.finished,
                stream.named_before,
                stream.text_offset,
                output.speller.context,
                list(output.hidden),
                b"" if output.finished else output.machine.snapshot(),
            )
        )
        return StreamStateOut(VERSION, base64.urlsafe_b64encode(self._tag(payload) + payload).decode())

    def open(self, version: int, text: str) -> Saved:
        """Check and unpack a state. Raises BadRequest for one that is damaged, foreign or of another
        version."""
        if version != VERSION:
            raise _refused(f"version {version} is not known here")
        try:
            data = base64.b64decode(text, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _refused("it is damaged") from None
        payload = data[_TAG_SIZE:]
        if not hmac.compare_digest(data[:_TAG_SIZE], self._tag(payload)):
            raise _refused("it is damaged or was made with another key")
        try:
            saved = self._decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeError):
            raise _refused("it is damaged") from None
        if saved.fingerprint != self._fingerprint:
            raise _refused("it belongs to another model or configuration")
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
        output.finished = saved.finished
        output.speller.context = saved.speller
        output.hidden = deque(saved.hidden)
        stream = Stream(output, saved.created)
        stream.index, stream.role_sent, stream.tokens = saved.index, saved.role_sent, saved.tokens
        stream.named_before, stream.text_offset = saved.named_before, saved.text_offset
        return stream

    def _tag(self, payload: bytes) -> bytes:
        return hashlib.blake2b(payload, key=self._key, digest_size=_TAG_SIZE, person=b"stream-state").digest()


def _refused(why: str) -> BadRequest:
    return BadRequest(f"invalid stream_state: {why}", param="stream_state")
