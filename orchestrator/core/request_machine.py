"""One run's place in the table of `request_table`, and which event a failure is: counts of attempts decide.

What the table says is the same for every run; what a run has used up, and what the settings allow, is here.
No clock, no I/O: feeding returns what the shell is to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.request_table import (
    ABORT_EARLY,
    FREE_HELD_KV,
    INITIAL,
    TERMINAL,
    TRANSITIONS,
    WITHOUT_CLIENT,
    Effect,
    Event,
    Row,
    State,
)


class ImpossibleEvent(Exception):
    """The shell fed an event that cannot happen in this state: a bug of ours, never of a client or an
    engine."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decide between cells or between events."""

    held_kv: Literal["free", "lease"] = "free"
    """KV held by prefill when the run is given up before decode: free it by a one-token decode, or let the
    engine's lease end."""
    abort_decode: Literal["first_token", "at_once"] = "first_token"
    """When a decode without a token yet may be aborted."""
    prefill_failure: Literal["fail", "recompute"] = "fail"
    """When no prefill engine delivers: an error, or decode computes the prompt."""
    prefill_attempts: int = 2
    decode_attempts: int = 2
    continuations: int = 0
    """How often a run may go on elsewhere after the client has seen output."""


def build_table(policy: Policy) -> Mapping[State, Row]:
    """The table in force under ``policy``."""
    table = dict(TRANSITIONS)
    overlays = [FREE_HELD_KV] if policy.held_kv == "free" else []
    overlays += [ABORT_EARLY] if policy.abort_decode == "at_once" else []
    for overlay in overlays:
        for state, row in overlay.items():
            table[state] = {**table[state], **row}
    return table


class RequestMachine:
    """One run's state and its counts of attempts."""

    __slots__ = (
        "_table", "continuations", "decode_attempts", "policy", "prefill_attempts", "state", "uses_prefill",
    )  # fmt: skip

    def __init__(self, policy: Policy, table: Mapping[State, Row] | None = None) -> None:
        """``table`` is ``build_table(policy)``, given by callers that make many machines."""
        self.policy = policy
        self._table = build_table(policy) if table is None else table
        self.state = INITIAL.state
        self.uses_prefill = False
        self.prefill_attempts = 0
        self.decode_attempts = 0
        self.continuations = 0

    def __repr__(self) -> str:
        attempts = f"prefill={self.prefill_attempts} decode={self.decode_attempts}"
        return f"<RequestMachine {self.state.value} {attempts}>"

    @property
    def over(self) -> bool:
        return self.state in TERMINAL

    def feed(self, event: Event) -> tuple[Effect, ...]:
        """Change state now and return the effects to carry out, in order. Raises ``ImpossibleEvent``."""
        step = self._table[self.state].get(event)
        if step is None:
            raise ImpossibleEvent(f"{event.value} in {self.state.value}")
        self.state = step.state
        if event in (Event.RENDERED, Event.ENCODED):
            self.uses_prefill = True
        elif event is Event.PREFILL_RECOMPUTE:
            self.uses_prefill = False
        if Effect.EXTEND_PROMPT in step.effects:
            self.continuations += 1
            self.prefill_attempts = self.decode_attempts = 0
        if Effect.START_PREFILL in step.effects:
            self.prefill_attempts += 1
        if Effect.START_DECODE in step.effects:
            self.decode_attempts += 1
        return step.effects

    def after_prefill_failure(self, *, retry_safe: bool, client_fault: bool) -> Event:
        """Which event a failed prefill hop is. ``client_fault``: a 4xx, which every engine would repeat."""
        if client_fault or self.state is State.RECALLING:
            return Event.PREFILL_FAILED
        if retry_safe and self.prefill_attempts < self.policy.prefill_attempts:
            return Event.PREFILL_RETRY
        return self.after_unusable_prefill()

    def after_unread_turn(self) -> Event:
        """Which event a prefill is that could not read the kept KV of an earlier turn: it is sent again
        without, and the attempt does not count."""
        if self.state is State.RECALLING:
            return Event.PREFILL_FAILED
        self.prefill_attempts -= 1
        return Event.PREFILL_RETRY

    def after_missed_items(self) -> Event:
        """Which event a failed leg is whose engine may have lacked images that were only named to it: it is
        sent again with all of them, and the attempt does not count. Params of held KV are used once all the
        same."""
        if self.state is State.PREFILLING:
            self.prefill_attempts -= 1
            return Event.PREFILL_RETRY
        if self.state in (State.DECODING, State.DECODING_DIRECT):
            self.decode_attempts -= 1
            self.prefill_attempts = 0
            return Event.DECODE_RETRY if self.uses_prefill else Event.DECODE_RETRY_DIRECT
        return Event.PREFILL_FAILED if self.state is State.RECALLING else Event.DECODE_FAILED

    def after_unusable_prefill(self) -> Event:
        """Which event a prefill is that answered without usable params."""
        if self.policy.prefill_failure == "recompute" and self.state is not State.RECALLING:
            return Event.PREFILL_RECOMPUTE
        return Event.PREFILL_FAILED

    def prefilled(self) -> Event:
        """Which event complete transfer params are, in the present state."""
        return Event.ABORT_TOO_LATE if self.state is State.RECALLING else Event.PREFILLED

    def first_token(self) -> Event:
        """Which event decode's first token is, in the present state."""
        resumed = self.state in (State.DECODING, State.DECODING_DIRECT) and self.continuations
        return Event.RESUMED if resumed else Event.FIRST_TOKEN

    def after_decode_failure(self, *, retry_safe: bool, continuable: bool = False) -> Event:
        """Which event a failed decode hop is, in the present state. ``continuable``: another engine, given
        the output so far, would go on as if nothing had happened."""
        if self.state is State.STREAMING and continuable and self.continuations < self.policy.continuations:
            return Event.DECODE_RESUME if self.uses_prefill else Event.DECODE_RESUME_DIRECT
        repeatable = self.state in (State.DECODING, State.DECODING_DIRECT, State.BUFFERING)
        if not (repeatable and retry_safe and self.decode_attempts < self.policy.decode_attempts):
            return Event.DECODE_FAILED
        if not self.uses_prefill:
            return Event.DECODE_RETRY_DIRECT
        # The fresh prefill belongs to the decode attempt, so it has attempts of its own.
        self.prefill_attempts = 0
        return Event.DECODE_RETRY

    def after_lease_end(self) -> Event:
        """Which event the end of our own lease deadline is, or the holder's death before it pushed."""
        if self.state not in WITHOUT_CLIENT and self.prefill_attempts < self.policy.prefill_attempts:
            return Event.LEASE_RETRY
        return Event.LEASE_LOST
