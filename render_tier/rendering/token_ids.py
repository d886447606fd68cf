"""The token IDs of a prompt as the parts that it was put together from, each already written as JSON.

A prompt's IDs are looked at rarely (their number always, their end sometimes) and written out always. Parts
that come from the prompt cache are kept as text, so a prompt of 100,000 known IDs costs one join.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from collections.abc import Iterator
from typing import NamedTuple

import msgspec


class Part(NamedTuple):
    length: int
    text: bytes
    """The IDs in decimal, joined by commas."""

    def ids(self) -> list[int]:
        ids: list[int] = msgspec.json.decode(b"[%b]" % self.text)
        return ids


def part_of(ids: list[int]) -> Part:
    return Part(len(ids), msgspec.json.encode(ids)[1:-1])


class PromptIds:
    """Immutable. Parts without IDs are left out."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = [part for part in parts if part.length]
        self._count = sum([part.length for part in self.parts])

    @classmethod
    def of(cls, ids: list[int]) -> PromptIds:
        return cls([part_of(ids)])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for part in self.parts:
            yield from part.ids()

    def __reversed__(self) -> Iterator[int]:
        """From the end, reading no more parts than are asked for."""
        for part in reversed(self.parts):
            yield from reversed(part.ids())

    def to_list(self) -> list[int]:
        joined: list[int] = msgspec.json.decode(self.json())
        return joined

    def json(self) -> bytes:
        """The JSON array."""
        return b"[%b]" % b",".join([part.text for part in self.parts])

    def base64(self) -> str:
        """The IDs as 32-bit little-endian integers, in base64."""
        packed = array("I", self.to_list())
        if sys.byteorder == "big":
            packed.byteswap()
        return b64encode(packed).decode()
