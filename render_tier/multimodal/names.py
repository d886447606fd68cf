"""Which image a client means by a name of its own (`uuid`): the first that it sent under it.

Engines keep what they make of an image under that name too, and would show the first where a request brings
another, whose tokens may be more or fewer. So a name stands for one image as long as it is known.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class Name(NamedTuple):
    scope: str | None
    """The client, as far as it is told apart from others."""
    salt: str | None
    """Of the request's caches."""
    mm_hash: str
    """What the image is told apart by in engines: made of the client's name, and of what the request says of
    how it is processed."""


class ImageNames:
    """The least recently used ones are forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._keys: OrderedDict[Name, bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, name: Name) -> bytes | None:
        """What `ImagePreparation.key` gave for the image."""
        key = self._keys.get(name)
        if key is not None:
            self._keys.move_to_end(name)
        return key

    def claim(self, name: Name, key: bytes) -> bool:
        """Whether the name stands for the image with that key from now on: not where it does for another."""
        if self.get(name) not in (None, key):
            return False
        self._keys[name] = key
        if len(self._keys) > self._most:
            self._keys.popitem(last=False)
        return True
