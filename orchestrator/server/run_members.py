"""Which members the legs of one run go to: of the request's generation, and while there are others none that
has failed the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from orchestrator.core.selection import Affinity, Candidate, Decision, PolicyName
from orchestrator.pool.member import Member

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange


class RunMembers:
    """What is chosen for prefill or decode settles the request's generation. ``anew``: it may settle on
    another one (``core.generation``). ``holder``: the prefill engine that holds KV for the run, if one does.
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._services = exchange.services
        self.affinity = Affinity()
        self.tried: set[str] = set()
        """Members that have failed this run."""
        self._predicted: dict[str, Candidate] = {}
        """By role, what was believed of the member that was chosen last."""

    def for_prefill(self, *, anew: bool) -> Member | None:
        paired = self._services.decode_pool.generations
        generation = self._exchange.generation
        member = self._services.prefill_pool.choose(
            self.tried,
            self.affinity,
            record=self._record,
            suits=lambda member: (
                member.generation in paired and generation.allows(member.generation, anew=anew)
            ),
        )
        return self._settled(member)

    def for_decode(
        self, holder: Member | None, *, anew: bool, policy: PolicyName | None, finishing: bool
    ) -> Member | None:
        """``policy`` replaces the pool's own. ``finishing``: as in `Pool.choose`."""
        generation = self._exchange.generation
        member = self._services.decode_pool.choose(
            self.tried,
            self.affinity,
            policy=policy,
            record=self._record,
            suits=lambda member: (
                generation.allows(member.generation, anew=anew)
                if holder is None
                else member.pulls_from(holder)
            ),
            finishing=finishing,
        )
        return self._settled(member)

    def for_freeing(self, holder: Member) -> Member | None:
        return self._services.decode_pool.choose(
            self.tried, suits=lambda member: member.pulls_from(holder), finishing=True
        )

    def compare_cached(
        self, role: Literal["prefill", "decode"], member: Member, reported: int | None
    ) -> None:
        """What was believed to be cached on ``member`` with what it ``reported``, in tokens."""
        if reported is not None and (chosen := self._predicted.get(role)) is not None:
            self._services.prefix_caches.compare(role, member, chosen, self.affinity, reported)

    def _settled(self, member: Member | None) -> Member | None:
        if member is not None:
            self._exchange.generation.settle(member.generation)
        return member

    def _record(self, role: str, decision: Decision) -> None:
        self._predicted[role] = decision.winner
        self._exchange.note_decision(role, decision)
