"""The members of one role: a fixed list, chosen from by the role's policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from orchestrator.core.breaker import Breaker
from orchestrator.core.selection import Draw, PolicyName, choose
from orchestrator.pool.member import Member


class Pool:
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
    ) -> None:
        self.role = role
        self._policy = policy
        self._clock = clock
        self._draw = draw
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
        return sum(member.probed is not False for member in self.members)

    def choose(self, tried: Collection[str] = ()) -> Member | None:
        """A member for a leg, preferably none of the ``tried``; None when the role has no members."""
        if not self._members:
            return None
        now = self._clock()
        candidates = [member.candidate(now, url in tried) for url, member in self._members.items()]
        chosen = choose(self._policy, candidates, self._turn, self._draw)
        self._turn += 1
        return self._members[chosen.key]

    def succeeded(self, member: Member) -> None:
        member.breaker.succeeded()

    def failed(self, member: Member) -> None:
        member.breaker.failed(self._clock())
