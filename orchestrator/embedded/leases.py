"""Lease table: prefilled KV that a decode engine may pull, once, before a deadline. Pure: time is passed in.

A lease is *held* from the end of its prefill, *claimed* when a decode engine has proved that it wants exactly
this KV, and *sending* while blocks travel. A held or claimed lease ends at its deadline, which the claimant's
heartbeats move; a sending one is pinned, because its blocks are being read (the transfer server bounds how
long). Every end is remembered for a while, so that a later claim is told why it fails.

    held ──claim──▶ claimed ──begin──▶ sending ──finish──▶ consumed
      └──────────────┴── deadline ──▶ expired   └─finish─▶ consumed
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum


class Refusal(StrEnum):
    """Why a claim is not honoured."""

    UNKNOWN = "unknown"
    EXPIRED = "expired"
    REUSED = "reused"
    PROMPT_MISMATCH = "prompt_mismatch"
    BLOCKS_MISMATCH = "blocks_mismatch"


class ClaimRefused(Exception):
    def __init__(self, reason: Refusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass
class Lease:
    """Blocks kept for one request. ``deadline`` is in the seconds of whoever calls the table."""

    request_id: str
    blocks: tuple[int, ...]
    tokens: int
    prompt_digest: str
    deadline: float
    claimed: bool = False
    sending: bool = False


class LeaseTable:
    def __init__(self, seconds: float, *, remembered: int) -> None:
        self.seconds = seconds
        self.granted = 0
        self.expired = 0
        self.consumed = 0
        self._leases: dict[str, Lease] = {}
        self._ended: OrderedDict[str, Refusal] = OrderedDict()
        self._remembered = remembered

    def __len__(self) -> int:
        return len(self._leases)

    def __repr__(self) -> str:
        return f"<LeaseTable {len(self)} held, {self.consumed} consumed, {self.expired} expired>"

    @property
    def blocks(self) -> int:
        """Blocks under lease."""
        return sum(len(lease.blocks) for lease in self._leases.values())

    def grant(
        self, request_id: str, blocks: tuple[int, ...], tokens: int, prompt_digest: str, now: float
    ) -> Lease:
        if request_id in self._leases:
            raise ValueError(f"request {request_id!r} has a lease already")
        lease = Lease(request_id, blocks, tokens, prompt_digest, now + self.seconds)
        self._leases[request_id] = lease
        self._ended.pop(request_id, None)
        self.granted += 1
        return lease

    def claim(
        self, request_id: str, blocks: tuple[int, ...], tokens: int, prompt_digest: str, now: float
    ) -> Lease:
        """Reserve a lease for one decode engine. Raises ClaimRefused; a refused claim changes nothing."""
        lease = self._leases.get(request_id)
        if lease is None:
            raise ClaimRefused(self._ended.get(request_id, Refusal.UNKNOWN))
        if lease.claimed:
            raise ClaimRefused(Refusal.REUSED)
        if lease.deadline <= now:
            raise ClaimRefused(Refusal.EXPIRED)
        if (tokens, prompt_digest) != (lease.tokens, lease.prompt_digest):
            raise ClaimRefused(Refusal.PROMPT_MISMATCH)
        if blocks != lease.blocks:
            raise ClaimRefused(Refusal.BLOCKS_MISMATCH)
        lease.claimed = True
        lease.deadline = now + self.seconds
        return lease

    def renew(self, lease: Lease, now: float) -> bool:
        """A heartbeat of the claimant. False if the lease has ended meanwhile."""
        if self._leases.get(lease.request_id) is not lease or lease.deadline <= now:
            return False
        lease.deadline = now + self.seconds
        return True

    def begin(self, lease: Lease, now: float) -> bool:
        """Blocks start to travel. False if the lease has ended meanwhile."""
        if not self.renew(lease, now):
            return False
        lease.sending = True
        return True

    def finish(self, lease: Lease) -> tuple[int, ...]:
        """End a claimed lease, delivered or given up: its params are spent. Returns the blocks to free."""
        if self._leases.get(lease.request_id) is not lease:
            return ()
        self.consumed += 1
        return self._end(lease, Refusal.REUSED)

    def expire(self, now: float) -> list[tuple[int, ...]]:
        """End the leases whose deadline has come. Returns the blocks to free, by lease."""
        over = [x for x in self._leases.values() if x.deadline <= now and not x.sending]
        self.expired += len(over)
        return [self._end(lease, Refusal.EXPIRED) for lease in over]

    def next_deadline(self) -> float | None:
        return min((x.deadline for x in self._leases.values() if not x.sending), default=None)

    def _end(self, lease: Lease, why: Refusal) -> tuple[int, ...]:
        del self._leases[lease.request_id]
        self._ended[lease.request_id] = why
        while len(self._ended) > self._remembered:
            self._ended.popitem(last=False)
        return lease.blocks
