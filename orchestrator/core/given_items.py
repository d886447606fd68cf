"""Which items (processed images) an engine has been given, so that it need not be sent them again.

Theory of operation
-------------------
An engine keeps the items of its requests by their hashes, in a cache of so many bytes, and drops the least
recently used. A request may name an item without its data; the engine then takes it from there. What an
engine has is followed from outside: the items of every request that it has answered, in that order, up to
fewer bytes than its cache has, as others may send it requests too. So this is a belief. An engine that lacks
an item fails the request before anything of it is computed; then everything that is believed of it is
dropped, and the request is sent again with all of its items.

Only hashes of contents are believed in. What a client has named may be another image the next time, and an
engine that puts one image in the places of another ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from orchestrator.core.media import Item


class GivenItems:
    """Of one engine."""

    __slots__ = ("_bytes", "_given", "times_forgotten")

    def __init__(self) -> None:
        self._given: OrderedDict[str, tuple[str | None, int]] = OrderedDict()
        """By hash, the least recently given first: in which form, and of how many bytes."""
        self._bytes = 0
        self.times_forgotten = 0

    def __repr__(self) -> str:
        return f"<GivenItems {len(self._given)} of {self._bytes} bytes>"

    def among(self, items: Iterable[Item], form: str | None) -> frozenset[str]:
        """The hashes of those that the engine should have in this form."""
        return frozenset(item.hash for item in items if self._given.get(item.hash) == (form, item.data_bytes))

    def answered(self, items: Iterable[Item], form: str | None, max_bytes: int) -> None:
        """The engine has answered a request that had these, whole or by name."""
        for item in items:
            _, before = self._given.pop(item.hash, (None, 0))
            self._bytes += item.data_bytes - before
            self._given[item.hash] = (form, item.data_bytes)
        while self._bytes > max_bytes:
            _, (_, size) = self._given.popitem(last=False)
            self._bytes -= size

    def forget(self) -> None:
        """It may have none of them any more."""
        self._given.clear()
        self._bytes = 0
        self.times_forgotten += 1
