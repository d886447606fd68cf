"""One choice's output: the parser core plus what surrounds it (stop tokens, counts, hidden logprobs).

Whole and streamed answers go through the same `Output`: whole is one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from render_tier.core.events import CallStart, Event, Tokens
from render_tier.core.machine import Machine
from render_tier.core.table import Region
from render_tier.derendering.context import Context
from render_tier.derendering.logprobs import TokenSpeller
from render_tier.protocol.derender import TokensChoice
from render_tier.protocol.responses import LogprobOut


@dataclass(slots=True)
class Step:
    """What one piece of output gave. ``used``: how many of its tokens count (fewer after a stop string)."""

    events: list[Event] = field(default_factory=list)
    used: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[LogprobOut] | None = None
    pieces: list[tuple[list[Event], list[LogprobOut]]] = field(default_factory=list)
    """For a Responses answer: the events again, token by token where logprobs are wanted, with those of the
    content that became certain."""


class Output:
    """``reasoning_tokens`` and ``calls`` count what was read so far; ``finished``: a finish was reported;
    ``stopped``: it was a stop string's.

    ``hidden``: where logprobs are given by region, the entries of tokens not yet attributed, one per token.
    """

    __slots__ = (
        "calls",
        "context",
        "eos",
        "finished",
        "hidden",
        "machine",
        "reasoning_tokens",
        "speller",
        "stopped",
    )

    def __init__(self, context: Context, eos: tuple[int, ...], machine: Machine | None = None) -> None:
        self.context = context
        self.eos = eos
        self.machine = context.machine() if machine is None else machine
        self.speller = TokenSpeller(context.grammar.vocabulary)
        self.reasoning_tokens = 0
        self.calls = 0
        self.finished = False
        self.stopped = False
        self.hidden: deque[LogprobOut | None] = deque()

    @property
    def counted_reasoning(self) -> int | None:
        """``reasoning_tokens`` for usage; None where they are not counted."""
        return self.reasoning_tokens if self.context.counts_reasoning else None

    def advance(self, choice: TokensChoice, *, whole: bool = False) -> Step:
        """Read the next tokens of the choice, or all of them (``whole``). After a finish, nothing more is
        read: an engine may still send tokens that it made before it was told to stop."""
        step = Step()
        if self.finished:
            return step
        machine = self.machine
        token_ids = choice.token_ids or []
        shown = self._shown(choice, token_ids)
        before = machine.tokens
        readable = token_ids if shown == len(token_ids) else token_ids[:shown]
        pieces = [machine.feed([token]) for token in readable] if self._by_token else [machine.feed(readable)]
        if machine.stopped is None and shown < len(token_ids):
            pieces.append(machine.skip(len(token_ids) - shown))
        step.used = machine.tokens - before
        if whole or machine.stopped is not None or choice.finish_reason is not None:
            pieces.append(machine.finish())
            self.finished = True
            self.stopped = machine.stopped is not None
        step.events = pieces[0] if len(pieces) == 1 else [event for piece in pieces for event in piece]
        self.count(step.events)
        if self.finished:
            step.finish_reason, step.stop_reason = self._finish(choice)
        if choice.logprobs is not None and choice.logprobs.content is not None:
            step.logprobs = self.speller.spell(choice.logprobs.content[: step.used])
        if self.context.kind == "responses":
            if self._by_token:
                self._take_in(step)
                step.pieces = [(piece, self._of_content(piece)) for piece in pieces]
            else:
                step.pieces = [(piece, []) for piece in pieces]
        elif self.context.hides_reasoning:
            step.logprobs = self._visible(step)
        return step

    def count(self, events: list[Event]) -> None:
        for event in events:
            if type(event) is Tokens:
                if event.region is Region.REASONING:
                    self.reasoning_tokens += event.count
            elif type(event) is CallStart:
                self.calls += 1

    def _shown(self, choice: TokensChoice, token_ids: list[int]) -> int:
        """How many tokens have text: a stop token, and what an engine sent after it, has none."""
        if choice.finish_reason != "stop" or not token_ids or self.context.options.include_stop:
            return len(token_ids)
        stop = choice.stop_reason
        if isinstance(stop, int):
            for index in range(len(token_ids) - 1, -1, -1):
                if token_ids[index] == stop:
                    return index
            return len(token_ids)
        return len(token_ids) - (stop is None and token_ids[-1] in self.eos)

    def _finish(self, choice: TokensChoice) -> tuple[str | None, int | str | None]:
        stopped = self.machine.stopped
        if stopped is not None:
            finish: str | None = "stop"
            reason: int | str | None = stopped
        else:
            finish, reason = choice.finish_reason, choice.stop_reason
            if isinstance(reason, int) and reason in self.eos and not self.context.ignores_eos:
                reason = None
        context = self.context
        if finish == "stop" and self.calls and not context.named and not context.drops_calls:
            finish = "tool_calls"
        return finish, reason

    @property
    def _by_token(self) -> bool:
        """Whether what becomes certain must be known of each token by itself."""
        return self.context.kind == "responses" and self.context.wants_logprobs

    def _visible(self, step: Step) -> list[LogprobOut] | None:
        """The logprobs of tokens that are known to be content or calls, when reasoning is hidden."""
        if not self.context.wants_logprobs:
            return None
        self._take_in(step)
        shown = (Region.CONTENT, Region.CALL)
        return [
            entry for region, run in self._attributed(step.events) if region in shown for entry in run
        ] or None

    def _of_content(self, events: list[Event]) -> list[LogprobOut]:
        return [
            entry for region, run in self._attributed(events) if region is Region.CONTENT for entry in run
        ]

    def _take_in(self, step: Step) -> None:
        entries: list[LogprobOut | None] = list(step.logprobs or ())
        entries += [None] * (step.used - len(entries))
        self.hidden.extend(entries[: step.used])

    def _attributed(self, events: list[Event]) -> Iterator[tuple[Region, list[LogprobOut]]]:
        """Runs of tokens whose region has become certain, with the logprobs that there are."""
        for event in events:
            if type(event) is Tokens:
                run = [self.hidden.popleft() for _ in range(min(event.count, len(self.hidden)))]
                yield event.region, [entry for entry in run if entry is not None]
