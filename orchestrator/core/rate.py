"""What the owner of a key may have under way and may begin in a minute."""

from __future__ import annotations


class TokenBucket:
    """``per_minute`` on average; as many at once after a quiet minute. Times are seconds of any clock."""

    __slots__ = ("_at", "_capacity", "_left", "_per_second")

    def __init__(self, per_minute: int) -> None:
        self._capacity = float(per_minute)
        self._per_second = per_minute / 60
        self._left = self._capacity
        self._at: float | None = None

    def __repr__(self) -> str:
        return f"<TokenBucket {self._left:.3g}/{self._capacity:g}>"

    def take(self, now: float) -> float:
        """0 when there was one; otherwise the seconds until there is, and nothing is taken."""
        if self._at is not None:
            self._left = min(self._capacity, self._left + max(0.0, now - self._at) * self._per_second)
        self._at = now
        if self._left >= 1 - 1e-9:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._per_second


class Account:
    """Of one key. None: no limit."""

    __slots__ = ("_bucket", "_concurrent", "active")

    def __init__(self, concurrent: int | None, per_minute: int | None) -> None:
        self.active = 0
        self._concurrent = concurrent
        self._bucket = None if per_minute is None else TokenBucket(per_minute)

    def __repr__(self) -> str:
        return f"<Account active={self.active} {self._bucket!r}>"

    @property
    def full(self) -> bool:
        return self._concurrent is not None and self.active >= self._concurrent

    def begin(self, now: float) -> float:
        """0: begun, and to be ended. Otherwise the seconds after which the rate allows it. Not to be called
        while ``full``."""
        assert not self.full
        wait = 0.0 if self._bucket is None else self._bucket.take(now)
        if wait == 0:
            self.active += 1
        return wait

    def end(self) -> None:
        self.active -= 1
