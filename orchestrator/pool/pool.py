"""The members of one role, who come and go, chosen from by the role's policy.

New work goes to members that are welcome: let in, not draining, not leaving. Where there are none, it goes to
those that drain or leave as long as others are joining, so that no moment is without members when all are
replaced. Work that belongs to what has been begun (KV that waits to be pulled, a stream under way) may go to
those that drain or leave in any case, where no other can take it. A member that leaves is forgotten when it
has nothing left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain

from orchestrator.core.breaker import Breaker
from orchestrator.core.parity import Role
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
        role: Role,
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
        self.role: Role = role
        self._asks_the_dead = asks_the_dead
        self.index = index
        self._block_tokens = block_tokens
        self._policy: PolicyName = policy
        self._clock = clock
        self._draw = draw
        self._load_factor = load_factor
        self._turn = 0
        self._breaker = (breaker_threshold, breaker_cooldown)
        self._members: dict[str, Member] = {}
        self._leaving: list[Member] = []
        for url in urls:
            self.join(url)

    def __repr__(self) -> str:
        return f"<Pool {self.role} {list(self._members.values())!r}>"

    def __bool__(self) -> bool:
        return bool(self._members)

    @property
    def members(self) -> Collection[Member]:
        return self._members.values()

    @property
    def leaving(self) -> Sequence[Member]:
        """Members no more, which still have something to do."""
        return self._leaving

    def find(self, url: str) -> Member | None:
        """Also one that is leaving."""
        return self._members.get(url) or next((each for each in self._leaving if each.url == url), None)

    def join(self, url: str, generation: str = "") -> Member:
        """A new member; one that is leaving comes back as what it was."""
        back = [member for member in self._leaving if (member.url, member.generation) == (url, generation)]
        if back:
            self._leaving.remove(back[0])
            back[0].leaving = False
        member = back[0] if back else Member(url, Breaker(*self._breaker), generation)
        self._members[url] = member
        return member

    def leave(self, url: str) -> Member:
        member = self._members.pop(url)
        member.leaving = True
        self.forget(member)
        self._leaving.append(member)
        return member

    def sweep(self, needed: Callable[[Member], bool] = lambda _member: False) -> None:
        """Forget those who have left, have nothing to do and are not ``needed``."""
        self._leaving = [member for member in self._leaving if not member.idle or needed(member)]

    @property
    def ready(self) -> bool:
        """A leg would find a member that has answered its last probe."""
        return any(member.probed for member in self._takers())

    @property
    def well(self) -> int:
        """How many members are welcome and have not failed their last probe."""
        return sum(member.alive and member.welcome for member in self.members)

    @property
    def available(self) -> bool:
        """A leg would find a member."""
        return bool(self._takers())

    @property
    def generations(self) -> frozenset[str]:
        """Of the members that a leg would find."""
        return frozenset(member.generation for member in self._takers())

    def elsewhere(self, tried: Collection[str]) -> bool:
        """A leg would find a member that is none of the ``tried``."""
        return any(member.alive and member.welcome and member.url not in tried for member in self.members)

    def choose(
        self,
        tried: Collection[str] = (),
        affinity: Affinity = NO_AFFINITY,
        *,
        policy: PolicyName | None = None,
        record: Callable[[str, Decision], None] | None = None,
        suits: Callable[[Member], bool] = lambda _member: True,
        finishing: bool = False,
    ) -> Member | None:
        """A member for a leg, preferably none of the ``tried``; None when none is available.

        ``policy`` replaces the role's own; ``record`` is told the role and how it was decided.
        ``suits`` says which members will do. ``finishing``: the leg belongs to what has been begun.
        """
        takers = self._takers(suits, finishing=finishing)
        if not takers:
            return None
        decision = self._decide(takers, tried, affinity, policy or self._policy)
        self._turn += 1
        if record is not None:
            record(self.role, decision)
        return next(member for member in takers if member.url == decision.winner.key)

    def _takers(
        self, suits: Callable[[Member], bool] = lambda _member: True, *, finishing: bool = False
    ) -> Sequence[Member]:
        """Who may get a leg: the members that are welcome, or else, for what is being finished or while
        others are joining, whoever can; or else those that are paused, where it waits. Nobody when all of
        them are dead, unless this role asks the dead."""
        takers = [member for member in self.members if member.welcome and suits(member)]
        if self._can_be_asked(takers):
            return takers
        if finishing or any(member.joining for member in self.members):
            takers = [
                member
                for member in chain(self.members, self._leaving)
                if member.admitted and not member.paused and suits(member)
            ]
            if self._can_be_asked(takers):
                return takers
        takers = [member for member in self.members if member.paused and member.holds_work and suits(member)]
        return takers if self._can_be_asked(takers) else ()

    def _can_be_asked(self, members: Sequence[Member]) -> bool:
        return any(member.alive for member in members) or (bool(members) and self._asks_the_dead)

    def would_find_cached(self, affinity: Affinity) -> int:
        """Leading blocks of the prompt on the member that prefix affinity would choose now."""
        takers = self._takers()
        if not takers or self.index is None:
            return 0
        return self._decide(takers, (), affinity, "prefix_affinity").winner.cached_blocks

    def remember(self, member: Member, affinity: Affinity) -> None:
        """The member has the prompt's blocks now."""
        if self.index is not None and not member.leaving:
            self.index.add(member.url, affinity.blocks)

    def forget(self, member: Member) -> None:
        """The member has lost what it had cached."""
        if self.index is not None:
            self.index.forget(member.url)

    def succeeded(self, member: Member) -> None:
        member.breaker.succeeded()

    def failed(self, member: Member) -> None:
        member.breaker.failed(self._clock())

    def avoids(self, member: Member) -> bool:
        """Its breaker is open: new work goes to others while there are any."""
        return member.breaker.is_open(self._clock())

    def _decide(
        self, members: Sequence[Member], tried: Collection[str], affinity: Affinity, policy: PolicyName
    ) -> Decision:
        candidates = self._candidates(members, tried, affinity, policy)
        return decide(policy, candidates, self._turn, self._draw, self._load_factor)

    def _candidates(
        self, members: Sequence[Member], tried: Collection[str], affinity: Affinity, policy: PolicyName
    ) -> list[Candidate]:
        now = self._clock()
        what: bytes | None = None
        cached: dict[str, int] = {}
        if policy == "session_affinity" and affinity.session is not None:
            what = affinity.session.encode("utf-8", "surrogatepass")
        elif policy == "prefix_affinity" and affinity.blocks:
            what = affinity.blocks[0]
            cached = self.index.cached(affinity.blocks) if self.index is not None else {}
        candidates = []
        for member in members:
            url = member.url
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
