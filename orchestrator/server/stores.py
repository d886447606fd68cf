"""The store that orchestrators share, where one is configured, and what is kept in it or in this process."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.hops.shared_store import SharedStore
from orchestrator.server.turn_stores import OwnTurns, SharedTurns, TurnStore
from orchestrator.turn_settings import StoreSettings, TurnSettings


def open_store(
    settings: StoreSettings, now: Callable[[], float], on_failed: Callable[[str], None]
) -> SharedStore | None:
    """No connection is made before the first operation."""
    if settings.url is None:
        return None
    return SharedStore(
        settings.url.get_secret_value(),
        prefix=settings.prefix,
        timeout=settings.timeout,
        pause=settings.pause,
        connections=settings.connections,
        now=now,
        on_failed=on_failed,
    )


def open_turn_store(settings: TurnSettings, store: SharedStore | None, now: Callable[[], float]) -> TurnStore:
    return OwnTurns(settings.entries, now) if store is None else SharedTurns(store, now)
