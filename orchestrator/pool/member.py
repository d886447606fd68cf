"""One server of one role, with what is known of it here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from orchestrator.core.breaker import Breaker
from orchestrator.core.reported_cache import ReportedCache
from orchestrator.core.selection import Candidate


class Member:
    """``probed`` is None until the first background probe has answered."""

    __slots__ = ("active", "breaker", "probed", "reports", "url")

    def __init__(self, url: str, breaker: Breaker) -> None:
        self.url = url
        self.breaker = breaker
        self.active = 0
        self.probed: bool | None = None
        self.reports: ReportedCache | None = None
        """What it says of its cache, where it is listened to."""

    def __repr__(self) -> str:
        return f"<Member {self.url} active={self.active} probed={self.probed} {self.breaker!r}>"

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

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Count a leg as active on this member."""
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1
