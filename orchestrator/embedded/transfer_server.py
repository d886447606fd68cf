"""The prefill side of a KV transfer: answers claims on leases and sends their blocks."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from orchestrator.embedded.leases import ClaimRefused, Lease, Refusal
from orchestrator.embedded.nixl_memory import NixlMemory
from orchestrator.embedded.transfer_protocol import (
    VERSION,
    Accept,
    Hello,
    Kind,
    ProtocolError,
    Refuse,
    decode_message,
)
from orchestrator.embedded.transfer_wire import Wire, WireLimits

log = logging.getLogger(__name__)

REFUSALS = {
    Refusal.UNKNOWN: "no KV is held for this request",
    Refusal.EXPIRED: "the lease on this request's KV has expired",
    Refusal.REUSED: "these params were used already; they are single-use",
    Refusal.PROMPT_MISMATCH: "the prompt differs from the one that was prefilled",
    Refusal.BLOCKS_MISMATCH: "remote_block_ids are not the blocks held for this request",
}


class LeaseSource(Protocol):
    """What the server needs of the engine. All calls return at once."""

    def claim(self, hello: Hello) -> Lease: ...
    def renew(self, lease: Lease) -> bool: ...
    def begin(self, lease: Lease) -> bool: ...
    def end(self, lease: Lease) -> None: ...
    def buffers(self, blocks: tuple[int, ...]) -> Iterable[memoryview]: ...
    def bytes_of(self, blocks: tuple[int, ...]) -> int: ...
    def sent(self, count: int) -> None: ...


@dataclass(frozen=True)
class TransferServerSettings:
    """``port`` 0 takes any free one."""

    host: str = "127.0.0.1"
    port: int = 0
    max_connections: int = 256
    limits: WireLimits = field(default_factory=WireLimits)


class TransferServer:
    def __init__(
        self,
        source: LeaseSource,
        settings: TransferServerSettings,
        *,
        engine_id: str,
        compatibility: str,
        lease_seconds: float,
        nixl: NixlMemory | None = None,
    ) -> None:
        self._nixl = nixl
        self._source = source
        self._settings = settings
        self._engine_id = engine_id
        self._compatibility = compatibility
        self._lease_seconds = lease_seconds
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._listener is not None, "the server has not started"
        return int(self._listener.getsockname()[1])

    async def start(self) -> None:
        settings = self._settings
        addresses = await asyncio.get_running_loop().getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM
        )
        family, kind, protocol, _, address = addresses[0]
        self._listener = socket.socket(family, kind, protocol)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.setblocking(False)
        self._listener.bind(address)
        self._listener.listen(settings.max_connections)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def stop(self) -> None:
        """Close the listener and every connection."""
        tasks = [*self._connections, *([self._accepting] if self._accepting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:  # out of file descriptors, or a connection reset before it was accepted
                log.warning("cannot accept a transfer connection: %s", error)
                await asyncio.sleep(0.1)
                continue
            if len(self._connections) >= self._settings.max_connections:
                sock.close()
                continue
            wire = Wire(sock, self._settings.limits)
            task = asyncio.create_task(self._serve(wire))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

    async def _serve(self, wire: Wire) -> None:
        try:
            await self._converse(wire)
        except (OSError, TimeoutError, ProtocolError) as error:
            log.info("transfer connection ended: %s", error or type(error).__name__)
        finally:
            wire.close()

    async def _converse(self, wire: Wire) -> None:
        _, body = await wire.expect(Kind.HELLO)
        hello = decode_message(body, Hello)
        refusal = self._mismatch(hello)
        if refusal is None:
            try:
                lease = self._source.claim(hello)
            except ClaimRefused as error:
                refusal = Refuse(error.reason, REFUSALS[error.reason])
        if refusal is not None:
            await wire.send(Kind.REFUSE, refusal)
            return
        try:
            await self._deliver(wire, lease, self._nixl if hello.transfer == "nixl" else None)
        finally:
            self._source.end(lease)

    def _mismatch(self, hello: Hello) -> Refuse | None:
        if hello.version != VERSION:
            return Refuse("version", f"transfer protocol version {hello.version} against {VERSION} here")
        if hello.engine_id != self._engine_id:
            return Refuse("engine_id", f"engine {hello.engine_id!r} is not here; this is {self._engine_id!r}")
        if hello.compatibility != self._compatibility:
            what = "model, number type, block layout, arithmetic (BLAS, numpy, CPU) or prefill chunk"
            return Refuse("compatibility", f"the engines differ in {what}")
        if hello.transfer == "nixl" and self._nixl is None:
            return Refuse(
                "transfer", "this engine's memory cannot be read over NIXL; it needs --transfer nixl"
            )
        return None

    async def _deliver(self, wire: Wire, lease: Lease, nixl: NixlMemory | None) -> None:
        size = self._source.bytes_of(lease.blocks)
        await wire.send(Kind.ACCEPT, Accept(size, self._lease_seconds))
        while True:
            # The lease's deadline decides; the socket only must not wait for ever.
            kind, _ = await wire.expect(Kind.HEARTBEAT, Kind.PULL, patience=self._lease_seconds)
            alive = self._source.begin(lease) if kind is Kind.PULL else self._source.renew(lease)
            if not alive:
                await wire.send(Kind.REFUSE, Refuse(Refusal.EXPIRED, REFUSALS[Refusal.EXPIRED]))
                return
            if kind is Kind.PULL:
                break
            await wire.send(Kind.HEARTBEAT)
        patience = self._settings.limits.transfer_seconds
        if nixl is None:
            await wire.send(Kind.DATA)
            await wire.send_buffers(self._source.buffers(lease.blocks))
            await wire.expect(Kind.DONE, patience=patience)
        else:
            await wire.send(Kind.MEMORY, nixl.memory)
            async with nixl.being_read():
                await wire.expect(Kind.DONE, patience=patience)
            await wire.send(Kind.DONE)
        self._source.sent(size)
