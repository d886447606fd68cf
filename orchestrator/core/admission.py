"""Who may go ahead: a bounded number at a time, and behind it a bounded queue that is fair among tenants.

A *gate* guards one resource. Entering it gives a ticket at once or a place in the queue; leaving it lets the
next one in. Among tenants the queue takes turns, whatever each of them has waiting; within a tenant the lower
priority number goes first, then the earlier arrival. So a tenant can order its own work and cannot push aside
another's.

Turns are start-time fair queueing: a tenant's virtual time grows by one with each of its tickets granted, the
tenant with the least is next, and a tenant that comes (back) starts at the present virtual time, so that
waiting elsewhere earns no credit. Nothing is remembered of a tenant without a waiting ticket.

Times are seconds on any one clock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Literal

TicketState = Literal["waiting", "granted", "over"]


class QueueFull(Exception):
    """``of_tenant``: the tenant's own share of the queue is full, not the whole queue."""

    def __init__(self, *, of_tenant: bool) -> None:
        super().__init__("the tenant's share of the queue is full" if of_tenant else "the queue is full")
        self.of_tenant = of_tenant


class Ticket:
    """One place in or behind a gate. ``on_granted`` is called when a waiting one is let in."""

    __slots__ = ("gate", "on_granted", "order", "priority", "state", "tenant")

    def __init__(
        self, gate: Gate, tenant: str, priority: int, order: int, on_granted: Callable[[], None]
    ) -> None:
        self.gate = gate
        self.tenant = tenant
        self.priority = priority
        self.order = order
        self.on_granted = on_granted
        self.state: TicketState = "waiting"

    def __repr__(self) -> str:
        return f"<Ticket {self.gate.name} {self.state} tenant={self.tenant!r} priority={self.priority}>"

    def __lt__(self, other: Ticket) -> bool:
        return (self.priority, self.order) < (other.priority, other.order)


class DrainRate:
    """How many leave per second, measured with an exponentially fading memory of ``memory`` seconds."""

    __slots__ = ("_began", "_count", "_last", "_memory")

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._began: float | None = None
        self._last = 0.0
        self._count = 0.0

    def note(self, now: float) -> None:
        if self._began is None:
            self._began = self._last = now
        self._count = self._faded(now) + 1.0
        self._last = now

    def rate(self, now: float) -> float | None:
        """None until something has left at two different times."""
        if self._began is None or now <= self._began:
            return None
        # A young measurement has seen only part of what a full memory would hold.
        seen = self._memory * (1.0 - math.exp(-(now - self._began) / self._memory))
        return self._faded(now) / seen

    def _faded(self, now: float) -> float:
        return self._count * math.exp(-max(0.0, now - self._last) / self._memory)


class Gate:
    """``limit`` None lets everybody in at once; it may change at any time."""

    def __init__(
        self, name: str, limit: int | None, *, max_waiting: int, max_waiting_per_tenant: int, memory: float
    ) -> None:
        self.name = name
        self.active = 0
        self.waiting = 0
        self._limit = limit
        self._max_waiting = max_waiting
        self._max_per_tenant = max_waiting_per_tenant
        self._drain = DrainRate(memory)
        self._order = 0
        self._virtual_time = 0.0
        self._queues: dict[str, list[Ticket]] = {}
        self._waiting_of: dict[str, int] = {}
        self._turns: list[tuple[float, int, str]] = []
        """A heap with one entry for each tenant in ``_queues``: its virtual time, a tie-breaker, its name."""

    def __repr__(self) -> str:
        return f"<Gate {self.name} active={self.active}/{self._limit} waiting={self.waiting}>"

    @property
    def limit(self) -> int | None:
        return self._limit

    @property
    def full(self) -> bool:
        """Nobody more may even wait."""
        return not self._has_room and self.waiting >= self._max_waiting

    @property
    def _has_room(self) -> bool:
        return self._limit is None or self.active < self._limit

    def enter(self, tenant: str, priority: int, on_granted: Callable[[], None]) -> Ticket:
        """A ticket that is granted at once (then ``on_granted`` is not called) or waits. Raises
        ``QueueFull``."""
        self._order += 1
        ticket = Ticket(self, tenant, priority, self._order, on_granted)
        if self._has_room and not self.waiting:
            self._grant(ticket)
            return ticket
        if self.waiting >= self._max_waiting:
            raise QueueFull(of_tenant=False)
        of_tenant = self._waiting_of.get(tenant, 0)
        if of_tenant >= self._max_per_tenant:
            raise QueueFull(of_tenant=True)
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = []
            heapq.heappush(self._turns, (self._virtual_time, self._order, tenant))
        heapq.heappush(queue, ticket)
        self._waiting_of[tenant] = of_tenant + 1
        self.waiting += 1
        return ticket

    def leave(self, ticket: Ticket, now: float) -> None:
        """Give the place up, also one that is still waited for. Does nothing the second time."""
        was, ticket.state = ticket.state, "over"
        if was == "waiting":
            self._no_longer_waiting(ticket)
            self._sweep(ticket.tenant)
        elif was == "granted":
            self.active -= 1
            self._drain.note(now)
            self._let_in()

    def set_limit(self, limit: int | None) -> None:
        self._limit = limit
        self._let_in()

    def retry_after(self, now: float, *, unknown: int, longest: int) -> int:
        """Whole seconds until one who comes then can expect to get in, by the measured drain rate; at least
        1, at most ``longest``. ``unknown`` while nothing has been measured."""
        rate = self._drain.rate(now)
        if rate is None or rate <= 0.0:
            return min(unknown, longest)
        return max(1, min(longest, math.ceil((self.waiting + 1) / rate)))

    def _let_in(self) -> None:
        while self.waiting and self._has_room:
            ticket = self._next()
            self._no_longer_waiting(ticket)
            self._grant(ticket)
            ticket.on_granted()

    def _next(self) -> Ticket:
        """Take the ticket whose turn it is out of the queue."""
        while True:
            virtual_time, order, tenant = heapq.heappop(self._turns)
            queue = self._queues[tenant]
            while queue and queue[0].state != "waiting":
                heapq.heappop(queue)
            if not queue:
                del self._queues[tenant]
                continue
            ticket = heapq.heappop(queue)
            self._virtual_time = max(self._virtual_time, virtual_time)
            if queue:
                heapq.heappush(self._turns, (virtual_time + 1.0, order, tenant))
            else:
                del self._queues[tenant]
            return ticket

    def _sweep(self, tenant: str) -> None:
        """Drop tickets that were given up, once they are most of the tenant's queue; else they go when their
        turn comes."""
        queue = self._queues[tenant]
        if len(queue) > 8 + 2 * self._waiting_of.get(tenant, 0):
            queue[:] = [ticket for ticket in queue if ticket.state == "waiting"]
            heapq.heapify(queue)

    def _grant(self, ticket: Ticket) -> None:
        ticket.state = "granted"
        self.active += 1

    def _no_longer_waiting(self, ticket: Ticket) -> None:
        self.waiting -= 1
        left = self._waiting_of[ticket.tenant] - 1
        if left:
            self._waiting_of[ticket.tenant] = left
        else:
            del self._waiting_of[ticket.tenant]
