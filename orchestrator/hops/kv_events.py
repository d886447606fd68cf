"""Follows one engine's cache events over ZeroMQ: subscription, replay of what was missed, reconnects.

The engine publishes (topic, number, payload) on a PUB socket and may answer replays on a ROUTER socket: asked
for a number it sends what it still has from there on, then the number -1. ZeroMQ itself connects again, with
growing pauses. Nothing that an engine sends or does not send ends more than the trust in its index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
import zmq
from zmq.utils.monitor import recv_monitor_message

from orchestrator.core.kv_events import GarbledEvents, read_batch, read_sequence
from orchestrator.core.reported_cache import Loss, ReportedCache

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    queued_messages: int
    """More are dropped, which is a gap."""
    message_bytes: int
    """A longer one costs the connection."""
    replay_timeout: float
    reconnect_first: float = 0.1
    reconnect_longest: float = 5.0
    heartbeat: float = 5.0
    """A connection that is silent for three of these is lost."""
    pause: float = 0.02
    """Between two looks at a quiet socket. ZeroMQ's own descriptors signal edges that its reads swallow."""
    turn: float = 0.002
    """For so long messages are read before the event loop has its turn."""


class KvEventFollower:
    """Keeps ``cache`` equal to what the engine at ``endpoint`` says. ``replay`` is None where the engine
    offers none."""

    def __init__(
        self,
        member: str,
        cache: ReportedCache,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        replay: str | None,
        topic: str,
        limits: Limits,
    ) -> None:
        self._member = member
        self._cache = cache
        self._context = context
        self._endpoint = endpoint
        self._replay_endpoint = replay
        self._topic = topic.encode()
        self._limits = limits
        self._connections = 0
        """Changes with each connection and its end."""
        self._begin = False
        """Connected, and the engine's past has not been asked for."""
        self._noted: dict[Loss, int] = {}

    def __repr__(self) -> str:
        return f"<KvEventFollower {self._member} {self._endpoint} {self._cache!r}>"

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._follow()
            except zmq.ZMQError as error:
                log.warning("kv events", member=self._member, endpoint=self._endpoint, error=str(error))
            except Exception as error:
                # Whatever it is: an index that nobody keeps up would be believed for ever.
                log.error("kv events", member=self._member, endpoint=self._endpoint, error=repr(error))
            self._cache.lose("disconnected")
            await asyncio.sleep(self._limits.reconnect_longest)

    async def _follow(self) -> None:
        socket = self._socket(zmq.SUB)
        monitor: zmq.Socket[bytes] = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        try:
            socket.setsockopt(zmq.SUBSCRIBE, self._topic)
            socket.connect(self._endpoint)
            while True:
                self._read_monitor(monitor)
                if self._begin:
                    self._begin = False
                    await self._replay(0, monitor)
                await self._read_messages(socket, monitor)
                self._note_losses()
                await asyncio.sleep(0 if socket.poll(0) else self._limits.pause)
        finally:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        limits = self._limits
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, "[" in self._endpoint)
        socket.setsockopt(zmq.RCVHWM, limits.queued_messages)
        socket.setsockopt(zmq.MAXMSGSIZE, limits.message_bytes)
        socket.setsockopt(zmq.RECONNECT_IVL, int(limits.reconnect_first * 1000))
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, int(limits.reconnect_longest * 1000))
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(limits.heartbeat * 1000))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(limits.heartbeat * 3000))
        return socket

    def _read_monitor(self, monitor: zmq.Socket[bytes]) -> None:
        """What happened to the connection happened before the messages that are read after this."""
        while monitor.poll(0):
            event: Any = recv_monitor_message(monitor)
            self._connections += 1
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._cache.lose("disconnected")
                self._begin = False
            else:
                self._begin = True

    async def _read_messages(self, socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        enough = self._turn_over()
        while socket.poll(0) and not enough():
            frames = socket.recv_multipart(zmq.NOBLOCK)
            self._read_monitor(monitor)
            try:
                number, payload = _parts(frames)
            except GarbledEvents as error:
                log.warning("kv events", member=self._member, error=str(error))
                self._cache.lose("garbled")
                continue
            missing_from = self._cache.arriving(number)
            if missing_from is not None:
                connections = self._connections
                await self._replay(missing_from, monitor)
                if connections != self._connections:
                    continue  # it is of the engine that was there before
            self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        try:
            self._cache.take(number, read_batch(payload))
        except GarbledEvents as error:
            log.warning("kv events", member=self._member, number=number, error=str(error))
            self._cache.skip(number)

    async def _replay(self, start: int, monitor: zmq.Socket[bytes]) -> None:
        """Take what the engine still has from ``start`` on; nothing when it does not answer."""
        if self._replay_endpoint is None:
            return
        connections = self._connections
        dealer = self._socket(zmq.DEALER)
        try:
            dealer.connect(self._replay_endpoint)
            enough = self._turn_over()
            async with asyncio.timeout(self._limits.replay_timeout):
                dealer.send_multipart([b"", start.to_bytes(8, "big")], zmq.NOBLOCK)
                while True:
                    self._read_monitor(monitor)
                    if connections != self._connections:
                        return
                    if not dealer.poll(0):
                        await asyncio.sleep(self._limits.pause)
                        continue
                    _empty, *frames = dealer.recv_multipart(zmq.NOBLOCK)
                    if len(frames) >= 2 and read_sequence(frames[1]) < 0:
                        break
                    self._take(*_parts(frames))
                    if enough():
                        await asyncio.sleep(0)
                        enough = self._turn_over()
            self._cache.nothing_yet()
        except (TimeoutError, zmq.ZMQError, GarbledEvents, ValueError) as error:
            problem = str(error) or "no answer in time"
            log.warning("kv events replay", member=self._member, start=start, error=problem)
        finally:
            dealer.close(linger=0)

    def _turn_over(self) -> Callable[[], bool]:
        now = asyncio.get_running_loop().time
        end = now() + self._limits.turn
        return lambda: now() > end

    def _note_losses(self) -> None:
        for reason, count in self._cache.losses.items():
            if count != self._noted.get(reason, 0) and reason != "drift":
                log.warning("kv index lost", member=self._member, reason=reason)
        self._noted = dict(self._cache.losses)


def _parts(frames: list[bytes]) -> tuple[int, bytes]:
    """Raises ``GarbledEvents``."""
    if len(frames) != 3:
        raise GarbledEvents(f"a message of {len(frames)} frames")
    number = read_sequence(frames[1])
    if number < 0:
        raise GarbledEvents("a negative sequence number")
    return number, frames[2]
