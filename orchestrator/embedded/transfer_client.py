"""The decode side of a KV transfer: claims a lease, keeps it alive while queued, pulls the blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from orchestrator.embedded.nixl_memory import NixlError, NixlMemory
from orchestrator.embedded.transfer_protocol import (
    Accept,
    Hello,
    Kind,
    Memory,
    ProtocolError,
    Refuse,
    decode_message,
)
from orchestrator.embedded.transfer_wire import Wire, WireLimits
from render_tier.protocol.errors import ApiError

HEARTBEATS_PER_LEASE = 4


class KVTransferError(ApiError):
    """The prefilled KV cannot be had (409; 503: the peer is unreachable): prefill the request again."""

    status = 409
    type = "KVTransferError"


class Pull:
    """A claimed lease on a prefill engine. Leaving the context before ``pull`` has succeeded gives it up."""

    def __init__(self, wire: Wire, peer: str, accept: Accept) -> None:
        self._wire = wire
        self._peer = peer
        self._open = True
        self.bytes = accept.bytes
        self.heartbeat_interval = accept.lease_seconds / HEARTBEATS_PER_LEASE

    @classmethod
    async def claim(cls, host: str, port: int, hello: Hello, limits: WireLimits) -> Pull:
        """Connect and claim. Raises KVTransferError."""
        peer = f"{host}:{port}"
        try:
            wire = await Wire.connect(host, port, limits)
        except (OSError, TimeoutError) as error:
            raise unreachable(peer, error) from error
        try:
            await wire.send(Kind.HELLO, hello)
            kind, body = await wire.expect(Kind.ACCEPT, Kind.REFUSE)
            if kind is Kind.REFUSE:
                raise refused(peer, decode_message(body, Refuse))
            return cls(wire, peer, decode_message(body, Accept))
        except (OSError, TimeoutError, ProtocolError) as error:
            wire.close()
            raise unreachable(peer, error) from error
        except BaseException:
            wire.close()
            raise

    async def heartbeat(self) -> None:
        """Renew the lease. Raises KVTransferError when it has ended or the peer has gone."""
        try:
            await self._wire.send(Kind.HEARTBEAT)
            kind, body = await self._wire.expect(Kind.HEARTBEAT, Kind.REFUSE)
            if kind is Kind.REFUSE:
                raise refused(self._peer, decode_message(body, Refuse))
        except (OSError, TimeoutError, ProtocolError) as error:
            raise unreachable(self._peer, error) from error

    async def pull(self, buffers: Iterable[memoryview]) -> None:
        """Fill the buffers, which must add up to ``bytes``. Raises KVTransferError."""
        try:
            await self._begin(Kind.DATA)
            await self._wire.receive_buffers(buffers)
            await self._wire.send(Kind.DONE)
        except (OSError, TimeoutError, ProtocolError) as error:
            raise unreachable(self._peer, error) from error
        self._close()

    async def read(self, nixl: NixlMemory, theirs: Sequence[int], mine: Sequence[int]) -> None:
        """Fill the blocks ``mine`` from the peer's ``theirs`` over NIXL. Raises KVTransferError. Nothing is
        written to the blocks after it has returned."""
        try:
            memory = decode_message(await self._begin(Kind.MEMORY), Memory)
            await nixl.read(memory, theirs, mine)
            await self._wire.send(Kind.DONE)
            await self._wire.expect(Kind.DONE)
        except (OSError, TimeoutError, ProtocolError, NixlError) as error:
            raise unreachable(self._peer, error) from error
        self._close()

    async def _begin(self, expected: Kind) -> bytes:
        await self._wire.send(Kind.PULL)
        kind, body = await self._wire.expect(expected, Kind.REFUSE)
        if kind is Kind.REFUSE:
            raise refused(self._peer, decode_message(body, Refuse))
        return body

    def _close(self) -> None:
        self._open = False
        self._wire.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Closing the connection is what gives the lease up.
        if self._open:
            self._close()


def refused(peer: str, refuse: Refuse) -> KVTransferError:
    return KVTransferError(
        f"Prefill engine {peer} refused the KV transfer ({refuse.reason}): {refuse.message}.",
        param="kv_transfer_params",
    )


def unreachable(peer: str, error: BaseException) -> KVTransferError:
    why = str(error) or type(error).__name__
    return KVTransferError(
        f"Prefill engine {peer} cannot be reached for the KV transfer: {why}.",
        param="kv_transfer_params",
        status=503,
    )
