"""Output of one run between the engine and derender: chunks that arrive while a derender call is in flight
become one.

Derender gives the same result for any chunking, so a slow derender costs larger calls, not a longer queue.
The bound on waiting tokens is the caller's: it stops reading the engine while ``full``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


class WeightVersionSpan(msgspec.Struct):
    """Output tokens ``start`` up to ``end`` (not with it) were sampled by weights of this name."""

    version: str
    start: int
    end: int


@dataclass(slots=True)
class Output:
    """Tokens of one choice with what came along. ``logprobs`` are the engine's entries, undecoded."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[msgspec.Raw] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: list[WeightVersionSpan] | None = None

    def add(self, later: Output) -> None:
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs += later.logprobs
        if later.weight_versions is not None:
            self.weight_versions = (self.weight_versions or []) + later.weight_versions
        if later.finish_reason is not None:
            self.finish_reason = later.finish_reason
            self.stop_reason = later.stop_reason


class Pending:
    """Holds at most ``max_tokens`` plus one engine chunk."""

    __slots__ = ("_held", "_max_tokens")

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._held: Output | None = None

    def __repr__(self) -> str:
        return f"<Pending tokens={len(self._held.token_ids) if self._held else 0}>"

    @property
    def empty(self) -> bool:
        return self._held is None

    @property
    def full(self) -> bool:
        return self._held is not None and len(self._held.token_ids) >= self._max_tokens

    def add(self, output: Output) -> None:
        """``output`` is given away: later ones are added to it."""
        if self._held is None:
            self._held = output
        else:
            self._held.add(output)

    def take(self) -> Output | None:
        """Everything that waits, as one output."""
        held, self._held = self._held, None
        return held
