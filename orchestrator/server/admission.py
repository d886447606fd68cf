"""The gates of one process: how requests and runs wait for a place, for how long, and what they are told when
there is none.

``requests`` bounds what is under way at all; ``render``, ``encode``, ``prefill`` and ``decode`` bound the
legs of a role by what its members may have at a time. Derender needs no gate: a run has one call under way,
and while that is slow its engine is not read, so its decode place stays taken. A decode queue that fills
refuses new requests before any work is done for them; that is how pressure from the back of the line reaches
the front.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Literal

from orchestrator.core.admission import Gate, QueueFull, Ticket
from orchestrator.core.parity import Role
from orchestrator.pool.pool import Pool
from orchestrator.server.integrity import Integrity
from orchestrator.settings import Admission as AdmissionSettings
from render_tier.protocol.errors import ApiError, Unavailable

GateName = Literal["requests", "render", "encode", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Who:
    """Whose place it is, and how urgent among its own: the lower number goes first."""

    tenant: str
    priority: int


class Busy(Unavailable):
    """No place, and no more room to wait for one."""


class Place:
    """One place at one gate: first waited for, then taken, at last left. Leaving twice does no harm."""

    __slots__ = ("_admission", "_began", "_name", "_on_in", "_on_refused", "_ticket", "_timer", "_who")

    def __init__(self, admission: Admission, name: GateName, who: Who) -> None:
        self._admission = admission
        self._name: GateName = name
        self._who = who
        self._ticket: Ticket | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Place {self._name} {self._ticket!r}>"

    def enter(self, on_in: Callable[[], None], on_refused: Callable[[ApiError], None]) -> None:
        """Exactly one of the two is called, at once or later, unless the place is left before."""
        admission = self._admission
        self._on_in, self._on_refused = on_in, on_refused
        self._began = perf_counter()
        try:
            ticket = admission.gates[self._name].enter(self._who.tenant, self._who.priority, self._let_in)
        except QueueFull as full:
            on_refused(admission.refusal(self._name, of_tenant=full.of_tenant))
            return
        self._ticket = ticket
        admission.integrity.places += 1
        if ticket.state == "granted":
            self._let_in()
        else:
            self._timer = admission.loop.call_later(admission.settings.max_wait, self._waited_too_long)

    async def wait(self) -> None:
        """``enter`` for a task. Raises ``Busy``; the place is left when the task is cancelled."""
        done: asyncio.Future[None] = self._admission.loop.create_future()

        def let_in() -> None:
            if not done.done():
                done.set_result(None)

        def refused(error: ApiError) -> None:
            if not done.done():
                done.set_exception(error)

        self.enter(let_in, refused)
        try:
            await done
        except asyncio.CancelledError:
            self.leave()
            raise

    async def __aenter__(self) -> None:
        await self.wait()

    async def __aexit__(self, *_exc_info: object) -> None:
        self.leave()

    def leave(self) -> None:
        self._stop_timer()
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._admission.integrity.places -= 1
            ticket.gate.leave(ticket, self._admission.loop.time())

    def _let_in(self) -> None:
        self._stop_timer()
        self._admission.on_let_in(self._name, perf_counter() - self._began)
        self._on_in()

    def _waited_too_long(self) -> None:
        self.leave()
        self._on_refused(self._admission.refusal(self._name, waited=True))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Admission:
    """``on_let_in`` is told the gate and the seconds waited, ``on_refused`` the gate and the cause."""

    def __init__(
        self,
        settings: AdmissionSettings,
        pools: Mapping[Role, Pool],
        integrity: Integrity,
        *,
        on_let_in: Callable[[GateName, float], None],
        on_refused: Callable[[GateName, str], None],
    ) -> None:
        self.settings = settings
        self.integrity = integrity
        self.loop = asyncio.get_running_loop()
        self.on_let_in = on_let_in
        self._on_refused = on_refused
        self._pools = pools
        self._per_member: dict[Role, int] = {
            "render": settings.render_per_member,
            "encode": settings.encode_per_member,
            "prefill": settings.prefill_per_member,
            "decode": settings.decode_per_member,
        }
        self.gates: dict[GateName, Gate] = {"requests": self._gate("requests", settings.requests)}
        for role in pools:
            self.gates[role] = self._gate(role, self._per_member[role])
        self.members_changed()

    def __repr__(self) -> str:
        return f"<Admission {list(self.gates.values())!r}>"

    def place(self, name: GateName, who: Who) -> Place:
        return Place(self, name, who)

    def members_changed(self) -> None:
        """Members have come or gone: a role's limit follows the number of those that are well."""
        for role, pool in self._pools.items():
            self.gates[role].set_limit(self._per_member[role] * max(1, pool.well))

    def require_room(self) -> None:
        """Raises ``Busy`` when a run that began now would find no room to wait further down the line."""
        roles: tuple[Role, ...] = ("prefill", "decode")
        for role in roles:
            if self._pools[role] and self.gates[role].full:
                raise self.refusal(role)

    def retry_after(self, name: GateName) -> int:
        settings = self.settings
        return self.gates[name].retry_after(
            self.loop.time(), unknown=settings.retry_after_unmeasured, longest=settings.retry_after_longest
        )

    def refusal(self, name: GateName, *, of_tenant: bool = False, waited: bool = False) -> Busy:
        cause = "tenant_queue_full" if of_tenant else "waited_too_long" if waited else "queue_full"
        self._on_refused(name, cause)
        what = "requests" if name == "requests" else f"{name} work"
        if of_tenant:
            error = Busy(f"too many of your requests wait for {what}", status=429, type="RateLimitError")
        elif waited:
            error = Busy(f"the server is overloaded: waited {self.settings.max_wait:g} s for {what}")
        else:
            error = Busy(f"the server is overloaded: the queue for {what} is full")
        error.retry_after = self.retry_after(name)
        return error

    def _gate(self, name: str, limit: int) -> Gate:
        settings = self.settings
        return Gate(
            name,
            limit,
            max_waiting=settings.queue,
            max_waiting_per_tenant=settings.queue_per_tenant,
            memory=settings.drain_memory,
        )
