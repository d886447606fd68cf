"""Where kept turns are remembered: in this process, or where all orchestrators see them (``core.turns``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, Literal, Protocol

import msgspec

from orchestrator.core.turns import Miss, Search, Turn, Turns, place_of
from orchestrator.hops.shared_store import SharedStore, StoreDown
from render_tier.protocol.unreadable import UNREADABLE

Kept = Literal["kept", "short", "store_unavailable"]

TRIED: Final = 4
"""Keys that are asked for at most, for one prompt: those of turns that have been given out may be among
them."""


class TurnStore(Protocol):
    async def keep(self, scope: bytes, prompt_tokens: int, token_ids: Sequence[int], turn: Turn) -> Kept:
        """As ``Turns.keep``."""

    async def take(self, scope: bytes, prompt: Sequence[int]) -> Turn | Miss:
        """As ``Turns.take``."""


class OwnTurns:
    """``now``: a monotonic clock in seconds."""

    def __init__(self, max_entries: int, now: Callable[[], float]) -> None:
        self._turns = Turns(max_entries)
        self._now = now

    def __repr__(self) -> str:
        return f"<OwnTurns {self._turns!r}>"

    async def keep(self, scope: bytes, prompt_tokens: int, token_ids: Sequence[int], turn: Turn) -> Kept:
        return "kept" if self._turns.keep(scope, prompt_tokens, token_ids, turn) else "short"

    async def take(self, scope: bytes, prompt: Sequence[int]) -> Turn | Miss:
        return self._turns.take(scope, prompt, self._now())


class _Entry(msgspec.Struct, array_like=True):
    tokens: int
    params: bytes
    holder: str
    seconds: float
    """For which it was kept when it was kept."""


_entry_decoder = msgspec.msgpack.Decoder(_Entry)


class SharedTurns:
    """The store's clock alone says how old a turn is and when it ends, so the orchestrators' need not agree.
    What has ended is not told from what never was."""

    def __init__(self, store: SharedStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now

    def __repr__(self) -> str:
        return f"<SharedTurns {self._store!r}>"

    async def keep(self, scope: bytes, prompt_tokens: int, token_ids: Sequence[int], turn: Turn) -> Kept:
        place = place_of(scope, prompt_tokens, token_ids)
        if place is None:
            return "short"
        seconds = turn.usable_until - self._now()
        entry = msgspec.msgpack.encode(_Entry(turn.tokens, turn.params, turn.holder, seconds))
        marks = {_mark(block): bits for block, bits in place.marks.items()}
        try:
            await self._store.put(_turn(place.key), entry, seconds, marks)
        except StoreDown:
            return "store_unavailable"
        return "kept"

    async def take(self, scope: bytes, prompt: Sequence[int]) -> Turn | Miss:
        search = Search(scope, prompt)
        if not search.blocks:
            return "nothing_held"
        asked_at = self._now()
        lengths: dict[str, int] = {}

        def keys(marks: Sequence[bytes | None]) -> list[str]:
            found = islice(search.keys(marks), TRIED)
            lengths.update((_turn(key), length) for key, length in found)
            return list(lengths)

        try:
            taken = await self._store.take_first([_mark(block) for block in search.blocks], keys)
        except StoreDown:
            return "store_unavailable"
        if taken is None:
            return "not_a_prefix" if search.began_so else "nothing_held"
        try:
            entry = _entry_decoder.decode(taken.value)
        except UNREADABLE:
            return "nothing_held"
        if entry.tokens != lengths[taken.key]:
            return "nothing_held"
        # It was put there within the time of one operation after the engine had it.
        age = entry.seconds - taken.seconds_left + self._store.timeout
        return Turn(entry.tokens, entry.params, entry.holder, asked_at - age, asked_at + taken.seconds_left)


def _mark(block: bytes) -> str:
    return f"turns-at:{block.hex()}"


def _turn(key: bytes) -> str:
    return f"turn:{key.hex()}"
