"""Which member serves a leg. Pure: candidates and randomness come in as arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

PolicyName = Literal["round_robin", "least_active", "power_of_two"]

Draw = Callable[[int], int]
"""``draw(n)`` gives a random integer in [0, n)."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """What selection sees of a member."""

    key: str
    active: int = 0
    """Legs in flight on it from here."""
    healthy: bool = True
    """Its last background probe succeeded, and its breaker is closed."""
    tried: bool = False
    """It has failed this run before."""


def eligible(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Members to choose from: healthy and untried, else healthy, else untried, else all.

    So a role with members is never left with none: a lone member that looks dead is asked again, and its own
    answer is the error that the client gets.
    """
    for wanted in (
        [c for c in candidates if c.healthy and not c.tried],
        [c for c in candidates if c.healthy],
        [c for c in candidates if not c.tried],
    ):
        if wanted:
            return wanted
    return candidates


def choose(policy: PolicyName, candidates: Sequence[Candidate], turn: int, draw: Draw) -> Candidate:
    """The member for a leg. ``turn`` counts the role's choices so far; ``candidates`` is not empty."""
    choices = eligible(candidates)
    if policy == "round_robin" or len(choices) == 1:
        return choices[turn % len(choices)]
    if policy == "power_of_two":
        first = draw(len(choices))
        second = (first + 1 + draw(len(choices) - 1)) % len(choices)
        choices = [choices[first], choices[second]]
        return min(choices, key=lambda c: c.active)
    rotated = [choices[(turn + i) % len(choices)] for i in range(len(choices))]
    return min(rotated, key=lambda c: c.active)
