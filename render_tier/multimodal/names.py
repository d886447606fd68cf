"""Which image a client means by a name of its own (`uuid`): the first that it sent under it.

Engines keep what they make of an image under that name too, and would show the first where a request brings
another, whose tokens may be more or fewer. So a name stands for one image as long as it is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class ImageNames:
    """By what engines are told for the client's name (`hashing.owned_hash`). The least recently used ones are
    forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[str, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, name: str) -> bytes | None:
        """What `ImagePreparation.key` gave for the image."""
        key = self._keys.get(name)
        if key is not None:
            self._keys.move_to_end(name)
        return key

    def claim(self, wanted: Iterable[tuple[str, bytes]]) -> int | None:
        """From now on each name stands for the image with the key beside it; or, where one stands for another
        already, none does, and the place of that one is returned."""
        claimed: dict[str, bytes] = {}
        for place, (name, key) in enumerate(wanted):
            if claimed.get(name, self._keys.get(name)) not in (None, key):
                return place
            claimed[name] = key
        for name, key in claimed.items():
            self._keys[name] = key
            self._keys.move_to_end(name)
            if len(self._keys) > self._most:
                self._keys.popitem(last=False)
        return None
