"""The life of one run as a table: state × event → next state and the effects the shell carries out.

A *run* is one answer choice of one prompt: it has its own prefill leg, its own held KV and its own decode
leg. A client request with n choices over m prompts is one render and n·m runs; they share the render hop and
the deadline, and nothing else, because what a prefill engine hands out can be used once.

Rules of this file
------------------
* The tables below are plain dicts and are the only description of what happens. The shell does what the
  machine (``request_machine``) reads out of them; ``docs/request-machine.md`` is generated from the same
  dicts, so the picture cannot lie.
* Every state × event pair is either a cell of the table or named in ``IMPOSSIBLE``. There is no default. A
  cell that changes nothing is written out (``stay``): it is an event that may arrive and has no consequence.
  An event in ``IMPOSSIBLE`` is a bug of the shell and raises.
* A state change happens at once and synchronously. Whatever takes time (a hop, an abort, a timer) is an
  effect, and its end is a later event. So there is no moment at which the state is not known, and a
  cancellation in the middle of an effect cannot lose one.
* Whether a failure may be retried depends on counts and settings, not on the state. That is decided before
  the event is fed, which is why an event is called ``DECODE_RETRY`` or ``DECODE_FAILED``, never "decode
  failed, maybe".

Theory of operation
-------------------
Render has no side effect: it may be repeated freely. Nor has ``ENCODING``, the hop of prompts with images
where there are encode members: what an encoder has made is filed under the image's own hash, and nobody has
to settle it. What becomes of each image is decided elsewhere (``core.encoding``); one that no encoder has
taken is computed by the engine that gets the prompt. So the hop ends once, with whatever came of it, and is
left at once by whoever gives up.

From ``PREFILLED`` on, a prefill engine holds KV blocks for this run under a lease that only *it* can see.
That obligation is settled exactly once, by one of two effects: ``KV_CONSUMED`` (a decode engine has pulled
the blocks, known at its first token) or ``KV_STRANDED`` (nobody will pull them; they are freed when the lease
ends, and a metric counts it). Both also stop our own lease timer, which is shorter than the engine's lease:
after it the params are worthless, since the blocks may hold another request's KV and a decode engine would
answer with that request's text and status 200.

The params of one prefill are used for at most one decode, also when that decode was refused. Therefore every
retry of a decode leg in P/D mode goes through ``PREFILLING`` again.

``BUFFERING`` is "tokens have arrived, the client has seen nothing": a failure there can still be repaired
invisibly, and a whole (non-streaming) answer stays there until the end. ``STREAMING`` is "the client has seen
output": nothing is retried any more, since a second sample would differ. What can be done, if policy wants
it, is to go on: what was sent becomes part of the prompt (``EXTEND_PROMPT``), other members take it from
there, and derender's state for the choice stays as it is. Such a run does not buffer again: its next first
token is ``RESUMED`` and leads straight back to ``STREAMING``.

The client leaving is handled by what an abort costs at that moment. Before prefill has answered, an abort
frees everything, unless it comes too late: the engine had just finished, and an abort of a finished prefill
does nothing. So the run is ``RECALLING``: it aborts and still looks at the answer. KV that is held after all,
there or in ``KV_HELD``, is pulled and freed by a one-token decode (``FREE_HELD_KV``) or left to the lease.
While a decode engine may be pulling KV, aborting it has crashed engines, so the run drains: it waits for the
first token, then aborts (``ABORT_EARLY`` is for engines known to be safe). A decode without params pulls
nothing (``DECODING_DIRECT``) and is aborted at once. ``RECALLING``, ``DRAINING`` and ``FREEING`` have no
client any more; they end by themselves or by ``CLEANUP_TIMEOUT``.

Exactly one of the effects ``COMPLETE`` and ``FAIL`` is told to a client that is still there, and none to one
that has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class State(Enum):
    RENDERING = "rendering"
    """Hop 1 is in flight; no engine knows of the run."""
    ENCODING = "encoding"
    """The prompt's images are on their way through encode members."""
    PREFILLING = "prefilling"
    """Hop 2 waits for a place on a prefill member, or is in flight."""
    KV_HELD = "kv_held"
    """Prefill has answered and holds KV under its lease; the run waits for a place on a decode member."""
    QUEUED = "queued"
    """No KV is held anywhere (colocated, skipped or recomputed prefill); the run waits for a place on a
    decode member."""
    DECODING = "decoding"
    """Hop 3 is dispatched with the params of held KV, no token has come."""
    DECODING_DIRECT = "decoding_direct"
    """Hop 3 is dispatched without params: the engine computes the prompt. No token has come."""
    BUFFERING = "buffering"
    """Tokens have come, the client has seen none of them."""
    STREAMING = "streaming"
    """The client has seen output."""
    FINISHING = "finishing"
    """Decode is over; the last output is on its way through derender."""
    RECALLING = "recalling"
    """No client; hop 2 is being aborted, and may have been too fast for that."""
    DRAINING = "draining"
    """No client; waiting for decode's first token so that it can be aborted safely."""
    FREEING = "freeing"
    """No client; a one-token decode pulls the held KV so that the prefill engine can free it."""
    DONE = "done"
    """The answer is complete."""
    FAILED = "failed"
    """The client was told an error; nothing of the run is left on an engine, apart from a counted lease."""
    ABANDONED = "abandoned"
    """Given up without an answer; what was held is settled."""


class Event(Enum):
    RENDERED = "rendered"
    """Render answered; the run goes through a prefill engine."""
    RENDERED_DIRECT = "rendered_direct"
    """Render answered; decode prefills by itself (colocated, or the prefill leg is skipped)."""
    RENDERED_TO_ENCODE = "rendered_to_encode"
    """Render answered; the prompt has images, which encode members take before an engine gets the prompt."""
    RENDER_RETRY = "render_retry"
    RENDER_FAILED = "render_failed"
    ENCODED = "encoded"
    """Every image is encoded or left to the engine; the run goes through a prefill engine."""
    ENCODED_DIRECT = "encoded_direct"
    """As above; decode prefills by itself."""
    ENCODE_FAILED = "encode_failed"
    """An image could not be encoded, and is not left to an engine."""
    PREFILLED = "prefilled"
    """Prefill ended by length and returned complete transfer params."""
    PREFILL_RETRY = "prefill_retry"
    PREFILL_RECOMPUTE = "prefill_recompute"
    """Prefill gave nothing usable, and policy lets decode compute the prompt."""
    PREFILL_FAILED = "prefill_failed"
    ABORT_TOO_LATE = "abort_too_late"
    """A prefill that was to be aborted had ended, and returned complete transfer params."""
    DECODE_ADMITTED = "decode_admitted"
    """There is a place on a decode member, and the member is chosen."""
    FIRST_TOKEN = "first_token"
    """Decode's first chunk with a choice in it: the KV has been pulled."""
    VISIBLE = "visible"
    """The first output is handed to the client."""
    DECODE_ENDED = "decode_ended"
    """Decode reported its finish reason."""
    STOP_MATCHED = "stop_matched"
    """Derender found a stop string; decode is still running."""
    DECODE_RETRY = "decode_retry"
    """Decode failed; another attempt is allowed and starts with a fresh prefill."""
    DECODE_RETRY_DIRECT = "decode_retry_direct"
    """Decode failed; another attempt is allowed and needs no prefill."""
    DECODE_RESUME = "decode_resume"
    """Decode failed after the client has seen output; the run goes on elsewhere, with a fresh prefill."""
    DECODE_RESUME_DIRECT = "decode_resume_direct"
    """As above, and decode computes the prompt by itself."""
    RESUMED = "resumed"
    """The first token of a run that goes on after visible output."""
    DECODE_FAILED = "decode_failed"
    FLUSHED = "flushed"
    """Everything that decode gave has been derendered and handed over."""
    DERENDER_FAILED = "derender_failed"
    LEASE_RETRY = "lease_retry"
    """The held KV cannot be had any more: our own lease deadline has passed, or its holder has died before it
    pushed it. A fresh prefill is allowed."""
    LEASE_LOST = "lease_lost"
    """As above, and no attempt is left."""
    CLIENT_GONE = "client_gone"
    SIBLING_FAILED = "sibling_failed"
    """Another run of the same request failed, so nobody wants this one's output."""
    DEADLINE = "deadline"
    """The request's time is over (its deadline, or the end of a shutdown's grace)."""
    CLEANUP_TIMEOUT = "cleanup_timeout"
    """Recalling, draining or freeing took longer than it may."""


class Effect(Enum):
    START_RENDER = "start_render"
    START_ENCODE = "start_encode"
    """A leg for each image of the prompt, which all runs of the prompt share."""
    LEAVE_ENCODE = "leave_encode"
    """What no other run waits for is cancelled."""
    START_PREFILL = "start_prefill"
    """With a fresh leg id, on a member that has not failed this run if there is one."""
    HOLD_KV = "hold_kv"
    """Record the lease and start our own timer, shorter than the engine's."""
    KV_CONSUMED = "kv_consumed"
    """The held KV, if any, was pulled: settle the lease."""
    KV_STRANDED = "kv_stranded"
    """The held KV, if any, is left to the engine's lease: settle it and count."""
    CHOOSE_DECODE = "choose_decode"
    START_DECODE = "start_decode"
    """With a fresh leg id and, if KV is held, its params."""
    START_FREEING = "start_freeing"
    """Dispatch a decode of one token with the held params."""
    ABORT_PREFILL = "abort_prefill"
    """Ask the engine to drop the leg, and go on waiting for its answer. A leg that has not been sent is not
    sent, which is ``PREFILL_FAILED`` at once."""
    ABORT_DECODE = "abort_decode"
    RESET_OUTPUT = "reset_output"
    """Forget the tokens and parser state of the failed attempt."""
    EXTEND_PROMPT = "extend_prompt"
    """The output so far becomes part of the prompt of the run's next legs."""
    FLUSH = "flush"
    COUNT_RECOMPUTE = "count_recompute"
    ARM_CLEANUP = "arm_cleanup"
    """Start the timer that bounds recalling, draining and freeing."""
    COMPLETE = "complete"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Step:
    """One cell: where the run goes, and what the shell does, in this order."""

    state: State
    effects: tuple[Effect, ...] = ()


Row = Mapping[Event, Step]

S, E, F = State, Event, Effect

TERMINAL: Final = frozenset({S.DONE, S.FAILED, S.ABANDONED})
"""Nothing leaves these."""

WITHOUT_CLIENT: Final = frozenset({S.RECALLING, S.DRAINING, S.FREEING, S.ABANDONED})
"""Nobody is told anything from here on."""

INITIAL: Final = Step(S.RENDERING, (F.START_RENDER,))

OUTSIDE: Final = (E.CLIENT_GONE, E.SIBLING_FAILED, E.DEADLINE)
"""Events that may arrive at any time, whatever the hops do."""


def stay(state: State, *events: Event) -> Row:
    """Cells for events that may arrive in ``state`` and change nothing."""
    return {event: Step(state) for event in events}


TRANSITIONS: Final[Mapping[State, Row]] = {
    S.RENDERING: {
        E.RENDERED: Step(S.PREFILLING, (F.START_PREFILL,)),
        E.RENDERED_DIRECT: Step(S.QUEUED, (F.CHOOSE_DECODE,)),
        E.RENDERED_TO_ENCODE: Step(S.ENCODING, (F.START_ENCODE,)),
        E.RENDER_RETRY: Step(S.RENDERING, (F.START_RENDER,)),
        E.RENDER_FAILED: Step(S.FAILED, (F.FAIL,)),
        E.CLIENT_GONE: Step(S.ABANDONED),
        E.SIBLING_FAILED: Step(S.ABANDONED),
        E.DEADLINE: Step(S.FAILED, (F.FAIL,)),
    },
    S.ENCODING: {
        E.ENCODED: Step(S.PREFILLING, (F.START_PREFILL,)),
        E.ENCODED_DIRECT: Step(S.QUEUED, (F.CHOOSE_DECODE,)),
        E.ENCODE_FAILED: Step(S.FAILED, (F.LEAVE_ENCODE, F.FAIL)),
        E.CLIENT_GONE: Step(S.ABANDONED, (F.LEAVE_ENCODE,)),
        E.SIBLING_FAILED: Step(S.ABANDONED, (F.LEAVE_ENCODE,)),
        E.DEADLINE: Step(S.FAILED, (F.LEAVE_ENCODE, F.FAIL)),
    },
    S.PREFILLING: {
        E.PREFILLED: Step(S.KV_HELD, (F.HOLD_KV, F.CHOOSE_DECODE)),
        E.PREFILL_RETRY: Step(S.PREFILLING, (F.START_PREFILL,)),
        E.PREFILL_RECOMPUTE: Step(S.QUEUED, (F.COUNT_RECOMPUTE, F.CHOOSE_DECODE)),
        E.PREFILL_FAILED: Step(S.FAILED, (F.FAIL,)),
        E.CLIENT_GONE: Step(S.RECALLING, (F.ABORT_PREFILL, F.ARM_CLEANUP)),
        E.SIBLING_FAILED: Step(S.RECALLING, (F.ABORT_PREFILL, F.ARM_CLEANUP)),
        E.DEADLINE: Step(S.RECALLING, (F.FAIL, F.ABORT_PREFILL, F.ARM_CLEANUP)),
    },
    S.KV_HELD: {
        E.DECODE_ADMITTED: Step(S.DECODING, (F.START_DECODE,)),
        E.DECODE_FAILED: Step(S.FAILED, (F.KV_STRANDED, F.FAIL)),
        E.LEASE_RETRY: Step(S.PREFILLING, (F.KV_STRANDED, F.START_PREFILL)),
        E.LEASE_LOST: Step(S.FAILED, (F.KV_STRANDED, F.FAIL)),
        E.CLIENT_GONE: Step(S.ABANDONED, (F.KV_STRANDED,)),
        E.SIBLING_FAILED: Step(S.ABANDONED, (F.KV_STRANDED,)),
        E.DEADLINE: Step(S.FAILED, (F.KV_STRANDED, F.FAIL)),
    },
    S.QUEUED: {
        E.DECODE_ADMITTED: Step(S.DECODING_DIRECT, (F.START_DECODE,)),
        E.DECODE_FAILED: Step(S.FAILED, (F.FAIL,)),
        E.CLIENT_GONE: Step(S.ABANDONED),
        E.SIBLING_FAILED: Step(S.ABANDONED),
        E.DEADLINE: Step(S.FAILED, (F.FAIL,)),
    },
    S.DECODING: {
        E.FIRST_TOKEN: Step(S.BUFFERING, (F.KV_CONSUMED,)),
        E.RESUMED: Step(S.STREAMING, (F.KV_CONSUMED,)),
        # A decode that was refused or died has not told the prefill engine anything: the blocks sit out the
        # lease.
        E.DECODE_RETRY: Step(S.PREFILLING, (F.KV_STRANDED, F.START_PREFILL)),
        E.DECODE_FAILED: Step(S.FAILED, (F.KV_STRANDED, F.FAIL)),
        # Only engines whose decode side does not renew the lease let the timer run here. What they would
        # answer now may be another request's text, so that leg is cut off before it can. And a decode that
        # waits for a dead engine to push has no other end.
        E.LEASE_RETRY: Step(S.PREFILLING, (F.ABORT_DECODE, F.KV_STRANDED, F.START_PREFILL)),
        E.LEASE_LOST: Step(S.FAILED, (F.ABORT_DECODE, F.KV_STRANDED, F.FAIL)),
        E.CLIENT_GONE: Step(S.DRAINING, (F.ARM_CLEANUP,)),
        E.SIBLING_FAILED: Step(S.DRAINING, (F.ARM_CLEANUP,)),
        E.DEADLINE: Step(S.DRAINING, (F.FAIL, F.ARM_CLEANUP)),
    },
    S.DECODING_DIRECT: {
        E.FIRST_TOKEN: Step(S.BUFFERING),
        E.RESUMED: Step(S.STREAMING),
        E.DECODE_RETRY_DIRECT: Step(S.QUEUED, (F.CHOOSE_DECODE,)),
        E.DECODE_FAILED: Step(S.FAILED, (F.FAIL,)),
        E.CLIENT_GONE: Step(S.ABANDONED, (F.ABORT_DECODE,)),
        E.SIBLING_FAILED: Step(S.ABANDONED, (F.ABORT_DECODE,)),
        E.DEADLINE: Step(S.FAILED, (F.ABORT_DECODE, F.FAIL)),
    },
    S.BUFFERING: {
        E.VISIBLE: Step(S.STREAMING),
        E.DECODE_ENDED: Step(S.FINISHING, (F.FLUSH,)),
        E.STOP_MATCHED: Step(S.FINISHING, (F.ABORT_DECODE, F.FLUSH)),
        E.DECODE_RETRY: Step(S.PREFILLING, (F.RESET_OUTPUT, F.START_PREFILL)),
        E.DECODE_RETRY_DIRECT: Step(S.QUEUED, (F.RESET_OUTPUT, F.CHOOSE_DECODE)),
        E.DECODE_FAILED: Step(S.FAILED, (F.FAIL,)),
        E.DERENDER_FAILED: Step(S.FAILED, (F.ABORT_DECODE, F.FAIL)),
        E.CLIENT_GONE: Step(S.ABANDONED, (F.ABORT_DECODE,)),
        E.SIBLING_FAILED: Step(S.ABANDONED, (F.ABORT_DECODE,)),
        E.DEADLINE: Step(S.FAILED, (F.ABORT_DECODE, F.FAIL)),
    },
    S.STREAMING: {
        E.DECODE_ENDED: Step(S.FINISHING, (F.FLUSH,)),
        E.STOP_MATCHED: Step(S.FINISHING, (F.ABORT_DECODE, F.FLUSH)),
        E.DECODE_RESUME: Step(S.PREFILLING, (F.EXTEND_PROMPT, F.START_PREFILL)),
        E.DECODE_RESUME_DIRECT: Step(S.QUEUED, (F.EXTEND_PROMPT, F.CHOOSE_DECODE)),
        E.DECODE_FAILED: Step(S.FAILED, (F.FAIL,)),
        E.DERENDER_FAILED: Step(S.FAILED, (F.ABORT_DECODE, F.FAIL)),
        E.CLIENT_GONE: Step(S.ABANDONED, (F.ABORT_DECODE,)),
        E.SIBLING_FAILED: Step(S.ABANDONED, (F.ABORT_DECODE,)),
        E.DEADLINE: Step(S.FAILED, (F.ABORT_DECODE, F.FAIL)),
    },
    S.FINISHING: {
        E.FLUSHED: Step(S.DONE, (F.COMPLETE,)),
        E.DERENDER_FAILED: Step(S.FAILED, (F.FAIL,)),
        E.CLIENT_GONE: Step(S.ABANDONED),
        E.SIBLING_FAILED: Step(S.ABANDONED),
        E.DEADLINE: Step(S.FAILED, (F.FAIL,)),
        # The first visible text may come out of the very last derender call.
        **stay(S.FINISHING, E.VISIBLE),
    },
    S.RECALLING: {
        E.PREFILL_FAILED: Step(S.ABANDONED),
        E.ABORT_TOO_LATE: Step(S.ABANDONED, (F.HOLD_KV, F.KV_STRANDED)),
        E.CLEANUP_TIMEOUT: Step(S.ABANDONED),
        **stay(S.RECALLING, *OUTSIDE),
    },
    S.DRAINING: {
        E.FIRST_TOKEN: Step(S.ABANDONED, (F.KV_CONSUMED, F.ABORT_DECODE)),
        E.DECODE_FAILED: Step(S.ABANDONED, (F.KV_STRANDED,)),
        E.CLEANUP_TIMEOUT: Step(S.ABANDONED, (F.ABORT_DECODE, F.KV_STRANDED)),
        E.LEASE_LOST: Step(S.ABANDONED, (F.ABORT_DECODE, F.KV_STRANDED)),
        **stay(S.DRAINING, *OUTSIDE),
    },
    S.FREEING: {
        E.FIRST_TOKEN: Step(S.ABANDONED, (F.KV_CONSUMED,)),
        E.DECODE_FAILED: Step(S.ABANDONED, (F.KV_STRANDED,)),
        E.CLEANUP_TIMEOUT: Step(S.ABANDONED, (F.ABORT_DECODE, F.KV_STRANDED)),
        E.LEASE_LOST: Step(S.ABANDONED, (F.ABORT_DECODE, F.KV_STRANDED)),
        **stay(S.FREEING, *OUTSIDE),
    },
    S.DONE: stay(S.DONE, *OUTSIDE),
    S.FAILED: stay(S.FAILED, *OUTSIDE),
    S.ABANDONED: stay(S.ABANDONED, *OUTSIDE),
}

FREE_HELD_KV: Final[Mapping[State, Row]] = {
    S.KV_HELD: {
        E.CLIENT_GONE: Step(S.FREEING, (F.START_FREEING, F.ARM_CLEANUP)),
        E.SIBLING_FAILED: Step(S.FREEING, (F.START_FREEING, F.ARM_CLEANUP)),
        E.DEADLINE: Step(S.FREEING, (F.FAIL, F.START_FREEING, F.ARM_CLEANUP)),
        E.DECODE_FAILED: Step(S.FREEING, (F.FAIL, F.START_FREEING, F.ARM_CLEANUP)),
    },
    S.RECALLING: {
        # The timer runs already.
        E.ABORT_TOO_LATE: Step(S.FREEING, (F.HOLD_KV, F.START_FREEING)),
    },
}
"""Cells that replace those of ``TRANSITIONS`` when held KV is to be freed by a one-token decode."""

ABORT_EARLY: Final[Mapping[State, Row]] = {
    S.DECODING: {
        E.CLIENT_GONE: Step(S.ABANDONED, (F.ABORT_DECODE, F.KV_STRANDED)),
        E.SIBLING_FAILED: Step(S.ABANDONED, (F.ABORT_DECODE, F.KV_STRANDED)),
        E.DEADLINE: Step(S.FAILED, (F.ABORT_DECODE, F.KV_STRANDED, F.FAIL)),
    },
}
"""Cells that replace those of ``TRANSITIONS`` when decode may be aborted while it pulls KV."""

_RENDER = frozenset({E.RENDERED, E.RENDERED_DIRECT, E.RENDERED_TO_ENCODE, E.RENDER_RETRY, E.RENDER_FAILED})
_ENCODE = frozenset({E.ENCODED, E.ENCODED_DIRECT, E.ENCODE_FAILED})
_PREFILL = frozenset({E.PREFILLED, E.PREFILL_RETRY, E.PREFILL_RECOMPUTE, E.PREFILL_FAILED})
_RECALL = frozenset({E.ABORT_TOO_LATE})
_DECODE_RETRIES = frozenset({E.DECODE_RETRY, E.DECODE_RETRY_DIRECT})
_RESUMES = frozenset({E.DECODE_RESUME, E.DECODE_RESUME_DIRECT})
_DECODE = _DECODE_RETRIES | _RESUMES | {E.FIRST_TOKEN, E.RESUMED, E.DECODE_ENDED, E.DECODE_FAILED}
_OUTPUT = frozenset({E.VISIBLE, E.STOP_MATCHED, E.FLUSHED, E.DERENDER_FAILED})
_LEASE = frozenset({E.LEASE_RETRY, E.LEASE_LOST})
_ADMISSION = frozenset({E.DECODE_ADMITTED})
_CLEANUP = frozenset({E.CLEANUP_TIMEOUT})
_BEFORE = _RENDER | _ENCODE
_HOPS = _BEFORE | _PREFILL | _RECALL | _DECODE | _OUTPUT | _LEASE | _ADMISSION | _CLEANUP

IMPOSSIBLE: Final[Mapping[State, frozenset[Event]]] = {
    # No engine has been asked for anything.
    S.RENDERING: _ENCODE | _PREFILL | _RECALL | _DECODE | _OUTPUT | _LEASE | _ADMISSION | _CLEANUP,
    S.ENCODING: _RENDER | _PREFILL | _RECALL | _DECODE | _OUTPUT | _LEASE | _ADMISSION | _CLEANUP,
    S.PREFILLING: _BEFORE | _RECALL | _DECODE | _OUTPUT | _LEASE | _ADMISSION | _CLEANUP,
    # ``DECODE_FAILED`` is possible here: there is no decode member, or no place on one in time.
    S.KV_HELD: _BEFORE | _PREFILL | _RECALL | (_DECODE - {E.DECODE_FAILED}) | _OUTPUT | _CLEANUP,
    S.QUEUED: _BEFORE | _PREFILL | _RECALL | (_DECODE - {E.DECODE_FAILED}) | _OUTPUT | _LEASE | _CLEANUP,
    # The finish reason always comes after ``FIRST_TOKEN``: the chunk that carries it is fed as that event
    # first. Params are used once, so a repetition goes through prefill again.
    S.DECODING: (
        _BEFORE | _PREFILL | _RECALL | _OUTPUT | _ADMISSION | _CLEANUP | _RESUMES
        | {E.DECODE_ENDED, E.DECODE_RETRY_DIRECT}
    ),
    # No KV is held, and no prefill engine was of use to this run.
    S.DECODING_DIRECT: (
        _BEFORE | _PREFILL | _RECALL | _OUTPUT | _ADMISSION | _CLEANUP | _RESUMES | _LEASE
        | {E.DECODE_ENDED, E.DECODE_RETRY}
    ),
    # The lease is settled at the first token.
    S.BUFFERING: (
        _BEFORE | _PREFILL | _RECALL | _LEASE | _ADMISSION | _CLEANUP | _RESUMES
        | {E.FIRST_TOKEN, E.RESUMED, E.FLUSHED}
    ),
    S.STREAMING: (
        _BEFORE | _PREFILL | _RECALL | _DECODE_RETRIES | _LEASE | _ADMISSION | _CLEANUP
        | {E.FIRST_TOKEN, E.RESUMED, E.VISIBLE, E.FLUSHED}
    ),
    S.FINISHING: _BEFORE | _PREFILL | _RECALL | _DECODE | _LEASE | _ADMISSION | _CLEANUP | {E.STOP_MATCHED},
    # Nothing is retried for a client that is gone, so retries are never decided on in these three.
    S.RECALLING: _BEFORE | (_PREFILL - {E.PREFILL_FAILED}) | _DECODE | _OUTPUT | _LEASE | _ADMISSION,
    S.DRAINING: (
        _BEFORE | _PREFILL | _RECALL | _DECODE_RETRIES | _RESUMES | _OUTPUT | _ADMISSION
        | {E.RESUMED, E.DECODE_ENDED, E.LEASE_RETRY}
    ),
    S.FREEING: (
        _BEFORE | _PREFILL | _RECALL | _DECODE_RETRIES | _RESUMES | _OUTPUT | _ADMISSION
        | {E.RESUMED, E.DECODE_ENDED, E.LEASE_RETRY}
    ),
    # Hops of a finished run have been cancelled and report to nobody.
    S.DONE: _HOPS,
    S.FAILED: _HOPS,
    S.ABANDONED: _HOPS,
}  # fmt: skip
