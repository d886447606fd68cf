"""Calls of the render tier that may be repeated on another member, because repeating them changes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from orchestrator.hops.errors import HopError, HopName, NoMembers
from orchestrator.pool.member import Member
from orchestrator.server.services import Services

Result = TypeVar("Result")


async def on_render_members(
    services: Services,
    hop: HopName,
    attempts: int,
    call: Callable[[str], Awaitable[Result]],
    suits: Callable[[Member], bool] = lambda _member: True,
) -> Result:
    """``call`` with one member's URL, then with another's while it fails in a way that may be repeated, at
    most ``attempts`` times. ``suits`` says which members will do. Raises the last ``HopError``."""
    pool = services.render_pool
    tried: set[str] = set()
    left = attempts
    while True:
        member = pool.choose(tried, suits=suits, finishing=True)
        if member is None:
            raise NoMembers(hop, "there is no render tier")
        try:
            with member.busy():
                result = await call(member.url)
        except HopError as error:
            services.note_failure(pool, member, error)
            # A lone member is asked again.
            tried.add(member.url)
            left -= 1
            if left < 1 or not error.retry_safe:
                raise
            services.metrics.retries.labels(hop).inc()
        else:
            pool.succeeded(member)
            return result
