"""What a source of members is: something that runs and tells the whole list whenever it may have changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from orchestrator.core.membership import MemberSpec

Tell = Callable[[Sequence[MemberSpec]], None]
"""All members of the source, as they are now."""

Failed = Callable[[str], None]
"""The source cannot be read; what it told last still holds."""


class Source(Protocol):
    name: str
    """For logs, metrics and the status: the kind and what identifies it."""

    async def follow(self, tell: Tell, failed: Failed) -> None:
        """Runs until cancelled. Calls one of the two before anything else that takes unbounded time."""
