"""One server of one role, with what is known of it here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Literal

from orchestrator.core.breaker import Breaker
from orchestrator.core.capabilities import Capabilities
from orchestrator.core.given_items import GivenItems
from orchestrator.core.parity import Difference, fits
from orchestrator.core.reported_cache import ReportedCache
from orchestrator.core.selection import Candidate

State = Literal["in", "joining", "down", "kept_out", "draining", "paused", "leaving"]


class Member:
    """``probed`` is None until the first background probe has answered."""

    __slots__ = (
        "active", "admitted", "breaker", "capabilities", "deaths", "differences", "draining", "generation",
        "given", "known", "leases", "leaving", "paused", "probed", "reports", "same_since",
        "tells_pauses", "url",
    )  # fmt: skip

    def __init__(self, url: str, breaker: Breaker, generation: str = "") -> None:
        self.url = url
        self.breaker = breaker
        self.generation = generation
        """Of its configuration. Prefill and decode of different ones are never paired."""
        self.given = GivenItems()
        self.active = 0
        self.leases = 0
        """KV that it holds for runs of ours."""
        self.probed: bool | None = None
        self.deaths = 0
        """How often it was found dead or paused; what was read of it before is of no use after."""
        self.same_since = inf
        """Since when it has been followed and neither found dead nor paused, on the event loop's clock."""
        self.tells_pauses = False
        """It says whether it is paused."""
        self.paused = False
        """It keeps new work waiting, while its weights are exchanged."""
        self.reports: ReportedCache | None = None
        """What it says of its cache, where it is listened to."""
        self.capabilities = Capabilities()
        self.known = False
        """What it reports has been read since it was last found to be alive."""
        self.differences: tuple[Difference, ...] = ()
        """To what its peers, the configuration or its role need."""
        self.admitted = True
        """It may work with the others, as far as is known."""
        self.draining = False
        """No new work for it; what it has is finished."""
        self.leaving = False
        """It is not a member any more, and forgotten when what it has is finished."""

    def died(self, now: float) -> None:
        """Or is paused: whatever it is after, it is not what it was."""
        self.deaths += 1
        self.given.forget()
        self.same_since = now

    def __repr__(self) -> str:
        return f"<Member {self.url} {self.state} active={self.active} probed={self.probed} {self.breaker!r}>"

    def candidate(
        self,
        now: float,
        *,
        tried: bool = False,
        cached_blocks: int = 0,
        rank: int = 0,
        reported_tokens: int | None = None,
        exact: bool = False,
    ) -> Candidate:
        healthy = self.alive and not self.breaker.is_open(now)
        return Candidate(
            self.url, self.active, healthy, tried, cached_blocks, rank, self.alive, reported_tokens, exact
        )

    @property
    def alive(self) -> bool:
        """It has not failed its last probe."""
        return self.probed is not False

    @property
    def joining(self) -> bool:
        """It may get work as soon as it is known."""
        kept_out = any(difference.keeps_out for difference in self.differences)
        return self.alive and not self.admitted and not kept_out and not self.draining and not self.leaving

    @property
    def welcome(self) -> bool:
        """New work may go to it, if it is alive."""
        return self.holds_work and not self.paused

    @property
    def holds_work(self) -> bool:
        """New work may wait at it, if it is alive."""
        return self.admitted and not self.draining and not self.leaving

    def pulls_from(self, prefill: Member) -> bool:
        """Whether this decode engine may be given KV of ``prefill``."""
        return self.generation == prefill.generation and fits(
            prefill.capabilities.known, self.capabilities.known
        )

    @property
    def idle(self) -> bool:
        return not self.active and not self.leases

    @property
    def state(self) -> State:
        if self.leaving:
            return "leaving"
        if not self.alive:
            return "down"
        if any(difference.keeps_out for difference in self.differences):
            return "kept_out"
        if self.draining:
            return "draining"
        if self.paused:
            return "paused"
        return "in" if self.admitted and self.probed else "joining"

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a leg as active on this member."""
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
