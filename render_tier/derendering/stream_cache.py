"""Streams that need not be restored: kept under the state that they gave, until that state comes back.

The key is a digest of the state itself, which names model, request, stream and choice and was signed here:
equal keys mean equal futures, and an entry saves its checking, unpacking and restoring. An entry is taken
out while it is in use, so two calls with the same state cannot share a stream, and one that fails leaves
nothing behind; either way the state is restored. So the cache changes the cost of an answer and nothing else.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from render_tier.derendering.state import Stream

ENTRY_BYTES: Final = 4096
"""About what a stream's objects take besides the text that they hold."""
_KEY_SIZE: Final = 16


class StreamCache:
    """Least recently used first out. Bounded in ``entries`` (0: no cache), in ``max_bytes`` (about) and in
    the ``seconds`` for which an unused entry is kept. Safe for threads."""

    def __init__(self, entries: int, max_bytes: int, seconds: float, clock: Callable[[], float]) -> None:
        self._entries = entries
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._clock = clock
        self._streams: OrderedDict[bytes, tuple[Stream, int, float]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._streams)

    def take(self, state: str) -> Stream | None:
        """The stream that gave ``state``, which is then the caller's alone."""
        if not self._entries:
            return None
        key = _key(state)
        with self._lock:
            self._expire()
            entry = self._streams.pop(key, None)
            if entry is None:
                return None
            self.bytes -= entry[1]
            return entry[0]

    def put(self, state: str, stream: Stream) -> None:
        """Keep a stream that stands where ``state`` says. The caller lets go of it."""
        if not self._entries or stream.finished:
            return
        key, size = _key(state), ENTRY_BYTES + 2 * len(state)
        with self._lock:
            self._expire()
            if key in self._streams:
                return  # two calls with the same state gave the same stream twice
            self._streams[key] = (stream, size, self._clock() + self._seconds)
            self.bytes += size
            while len(self._streams) > self._entries or self.bytes > self._max_bytes:
                self._drop_oldest()

    def _expire(self) -> None:
        now = self._clock()
        while self._streams:
            _stream, _size, until = next(iter(self._streams.values()))
            if until > now:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _key, (_stream, size, _until) = self._streams.popitem(last=False)
        self.bytes -= size


def _key(state: str) -> bytes:
    return hashlib.blake2b(state.encode(errors="surrogatepass"), digest_size=_KEY_SIZE).digest()
