"""The data of items (processed images), kept so that render need not send it again.

By hashes of contents, the least recently used dropped. Render is told what is here, leaves that out of its
reply, and it is put in from here.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

NAMED_CHARS: Final = 16
"""Of a hash, for render."""
NAMED: Final = 256
"""So many are named to render at most."""


@dataclass(frozen=True, slots=True)
class Kept:
    form: str
    """Other data may go by the same hash in another one."""
    data: memoryview
    """As JSON."""


class ItemStore:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<ItemStore {len(self._kept)} of {self.bytes} bytes>"

    def latest(self) -> Mapping[str, Kept]:
        """The most recently used, by hash."""
        return dict(islice(reversed(self._kept.items()), NAMED))

    def keep(self, name: str, form: str, data: memoryview) -> None:
        """``data`` is a part of an answer that does not stay. What is larger than all that may be kept is
        not."""
        if data.nbytes > self.max_bytes:
            return
        found = self._kept.pop(name, None)
        if found is None or found.form != form:
            self.bytes += data.nbytes - (0 if found is None else found.data.nbytes)
            found = Kept(form, memoryview(bytes(data)))
        self._kept[name] = found
        while self.bytes > self.max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= oldest.data.nbytes
