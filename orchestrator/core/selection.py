"""Which member serves a leg, and why. Pure: candidates and randomness come in as arguments.

The affinity policies send what belongs together to the same member, so that its cache is of use. Members are
ranked by rendezvous hashing of the prompt's first block or of the session, on which any number of
orchestrators agree without talking; where a member is known to hold more of the prompt, that counts first.
Affinity never beats load: a member with more than ``load_factor`` times its share of what is under way is
left out, so a popular prefix spreads over as many members as its traffic needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final, Literal

from orchestrator.core.exact_index import LookedUp

PolicyName = Literal["round_robin", "least_active", "power_of_two", "prefix_affinity", "session_affinity"]

Draw = Callable[[int], int]
"""``draw(n)`` gives a random integer in [0, n)."""

RANKS: Final = 2**64
"""Above every rank."""

SHOWN_CANDIDATES: Final = 16
"""In the record of a decision."""


@dataclass(frozen=True, slots=True)
class Affinity:
    """What ties a leg to earlier ones: the client's session, and the hashes of the prompt's blocks."""

    session: str | None = None
    blocks: Sequence[bytes] = ()
    prompt: LookedUp | None = None
    """For the indexes of members that report what they hold; None where these cannot tell."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What selection sees of a member."""

    key: str
    active: int = 0
    """Legs in flight on it from here."""
    healthy: bool = True
    """Nothing speaks against it: no failed probe, no open breaker."""
    tried: bool = False
    """It has failed this run before."""
    cached_blocks: int = 0
    """Leading blocks of the prompt that it probably holds."""
    rank: int = 0
    """Its place by rendezvous hashing, the highest first; 0 when there is nothing to hash."""
    alive: bool = True
    """It has not been found dead, by its last probe or by a connection that could not be made."""
    reported_tokens: int | None = None
    """Leading tokens of the prompt that it says it holds, where it reports such things."""
    exact: bool = False
    """``cached_blocks`` follows from that; otherwise it is what the member was given before."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice with what it was made from."""

    policy: PolicyName
    winner: Candidate
    candidates: Sequence[Candidate]
    spilled: bool
    """Affinity preferred another member, which has too much to do."""

    def shortened(self) -> Decision:
        """Without the candidates that a record does not show."""
        if len(self.candidates) <= SHOWN_CANDIDATES:
            return self
        return replace(self, candidates=self.candidates[:SHOWN_CANDIDATES])

    def as_json(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "winner": self.winner.key,
            "spilled": self.spilled,
            "candidates": [
                {
                    "member": c.key,
                    "active": c.active,
                    "healthy": c.healthy,
                    "tried": c.tried,
                    "cached_blocks": c.cached_blocks,
                    "rank": round(c.rank / RANKS, 4),
                    "index": "exact" if c.exact else "approximate",
                }
                for c in self.candidates[:SHOWN_CANDIDATES]
            ],
        }


def rendezvous_rank(what: bytes, member: str) -> int:
    """At least 1."""
    return 1 + int.from_bytes(blake2b(what + b"\0" + member.encode(), digest_size=8).digest(), "big")


def eligible(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Members to choose from: healthy and untried, else healthy, else alive and untried, else alive, else
    untried, else all.

    So breakers never leave a role without members: a lone member that keeps failing is asked again, and its
    own answer is the error that the client gets. Whether dead ones may be asked is for the caller to say.
    """
    for wanted in (
        [c for c in candidates if c.healthy and not c.tried],
        [c for c in candidates if c.healthy],
        [c for c in candidates if c.alive and not c.tried],
        [c for c in candidates if c.alive],
        [c for c in candidates if not c.tried],
    ):
        if wanted:
            return wanted
    return candidates


def within_load(candidates: Sequence[Candidate], load_factor: float) -> Sequence[Candidate]:
    """Those that may take one more leg; never empty for a factor of at least 1."""
    bound = math.ceil(load_factor * (sum(c.active for c in candidates) + 1) / len(candidates))
    return [c for c in candidates if c.active < bound]


def decide(
    policy: PolicyName, candidates: Sequence[Candidate], turn: int, draw: Draw, load_factor: float = 1.25
) -> Decision:
    """The member for a leg. ``turn`` counts the role's choices so far; ``candidates`` is not empty."""
    choices = eligible(candidates)
    spilled = False
    if policy == "round_robin" or len(choices) == 1:
        winner = choices[turn % len(choices)]
    elif policy == "power_of_two":
        first = draw(len(choices))
        second = (first + 1 + draw(len(choices) - 1)) % len(choices)
        winner = min((choices[first], choices[second]), key=_load)
    elif policy != "least_active" and any(c.rank for c in choices):
        first_choice = max(choices, key=_affinity)
        winner = max(within_load(choices, load_factor), key=_affinity)
        spilled = winner is not first_choice
    else:
        winner = min((choices[(turn + i) % len(choices)] for i in range(len(choices))), key=_load)
    return Decision(policy, winner, candidates, spilled)


def _load(candidate: Candidate) -> int:
    return candidate.active


def _affinity(candidate: Candidate) -> tuple[int, int]:
    return candidate.cached_blocks, candidate.rank
