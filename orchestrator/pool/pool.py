"""The members of one role: a fixed list, chosen from by the role's policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from orchestrator.core.breaker import Breaker
from orchestrator.core.prefix import PrefixIndex
from orchestrator.core.selection import (
    Affinity,
    Candidate,
    Decision,
    Draw,
    PolicyName,
    decide,
    rendezvous_rank,
)
from orchestrator.pool.member import Member

NO_AFFINITY = Affinity()


class Pool:
    """``index``, when given, is what the members have probably cached, in blocks of ``block_tokens``. What a
    member reports itself counts instead, as long as it can be believed. ``asks_the_dead``: when all members
    have failed their last probe they are asked all the same; a role whose legs cost something on the way to
    them gives nobody then."""

    def __init__(
        self,
        role: str,
        urls: Sequence[str],
        policy: PolicyName,
        *,
        breaker_threshold: int,
        breaker_cooldown: float,
        clock: Callable[[], float],
        draw: Draw,
        load_factor: float = 1.25,
        index: PrefixIndex | None = None,
        block_tokens: int = 64,
        asks_the_dead: bool = False,
    ) -> None:
        self.role = role
        self._asks_the_dead = asks_the_dead
        self.index = index
        self._block_tokens = block_tokens
        self._policy: PolicyName = policy
        self._clock = clock
        self._draw = draw
        self._load_factor = load_factor
        self._turn = 0
        self._members = {url: Member(url, Breaker(breaker_threshold, breaker_cooldown)) for url in urls}

    def __repr__(self) -> str:
        return f"<Pool {self.role} {list(self._members.values())!r}>"

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def members(self) -> Collection[Member]:
        return self._members.values()

    @property
    def ready(self) -> bool:
        """Some member has answered its last probe."""
        return any(member.probed for member in self.members)

    @property
    def well(self) -> int:
        """How many members have not failed their last probe."""
        return sum(member.alive for member in self.members)

    @property
    def available(self) -> bool:
        """A leg would find a member."""
        return bool(self._members) if self._asks_the_dead else self.well > 0

    def elsewhere(self, tried: Collection[str]) -> bool:
        """Some member that is alive is none of the ``tried``."""
        return any(member.alive and member.url not in tried for member in self.members)

    def choose(
        self,
        tried: Collection[str] = (),
        affinity: Affinity = NO_AFFINITY,
        *,
        policy: PolicyName | None = None,
        record: Callable[[str, Decision], None] | None = None,
    ) -> Member | None:
        """A member for a leg, preferably none of the ``tried``; None when none is available.

        ``policy`` replaces the role's own; ``record`` is told the role and how it was decided.
        """
        if not self.available:
            return None
        decision = self._decide(tried, affinity, policy or self._policy)
        self._turn += 1
        if record is not None:
            record(self.role, decision)
        return self._members[decision.winner.key]

    def would_find_cached(self, affinity: Affinity) -> int:
        """Leading blocks of the prompt on the member that prefix affinity would choose now."""
        if not self.available or self.index is None:
            return 0
        return self._decide((), affinity, "prefix_affinity").winner.cached_blocks

    def remember(self, member: Member, affinity: Affinity) -> None:
        """The member has the prompt's blocks now."""
        if self.index is not None:
            self.index.add(member.url, affinity.blocks)

    def forget(self, member: Member) -> None:
        """The member has lost what it had cached."""
        if self.index is not None:
            self.index.forget(member.url)

    def succeeded(self, member: Member) -> None:
        member.breaker.succeeded()

    def failed(self, member: Member) -> None:
        member.breaker.failed(self._clock())

    def _decide(self, tried: Collection[str], affinity: Affinity, policy: PolicyName) -> Decision:
        candidates = self._candidates(tried, affinity, policy)
        return decide(policy, candidates, self._turn, self._draw, self._load_factor)

    def _candidates(self, tried: Collection[str], affinity: Affinity, policy: PolicyName) -> list[Candidate]:
        now = self._clock()
        what: bytes | None = None
        cached: dict[str, int] = {}
        if policy == "session_affinity" and affinity.session is not None:
            what = affinity.session.encode("utf-8", "surrogatepass")
        elif policy == "prefix_affinity" and affinity.blocks:
            what = affinity.blocks[0]
            cached = self.index.cached(affinity.blocks) if self.index is not None else {}
        candidates = []
        for url, member in self._members.items():
            blocks, reported, exact = cached.get(url, 0), None, False
            if policy == "prefix_affinity" and what and member.reports and affinity.prompt:
                reported = member.reports.predict(affinity.prompt)
                if reported is not None and member.reports.trusted:
                    blocks, exact = reported // self._block_tokens, True
            candidates.append(
                member.candidate(
                    now,
                    tried=url in tried,
                    cached_blocks=blocks,
                    rank=0 if what is None else rendezvous_rank(what, url),
                    reported_tokens=reported,
                    exact=exact,
                )
            )
        return candidates
