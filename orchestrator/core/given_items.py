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

    __slots__ = ("_bytes", "_sizes")

    def __init__(self) -> None:
        self._sizes: OrderedDict[str, int] = OrderedDict()
        """By hash, the least recently given first."""
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<GivenItems {len(self._sizes)} of {self._bytes} bytes>"

    def among(self, items: Iterable[Item]) -> frozenset[str]:
        """The hashes of those that the engine should have."""
        return frozenset(item.hash for item in items if self._sizes.get(item.hash) == item.data_bytes)

    def answered(self, items: Iterable[Item], max_bytes: int) -> None:
        """The engine has answered a request that had these, by whatever form."""
        for item in items:
            self._bytes += item.data_bytes - self._sizes.pop(item.hash, 0)
            self._sizes[item.hash] = item.data_bytes
        while self._bytes > max_bytes:
            self._bytes -= self._sizes.popitem(last=False)[1]

    def forget(self) -> None:
        """It may have none of them any more."""
        self._sizes.clear()
        self._bytes = 0
