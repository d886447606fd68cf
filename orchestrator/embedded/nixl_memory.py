"""The engine's KV memory on NIXL: registered once, read by decode engines, and the reading of others' memory.

Theory of operation. A NIXL *agent* is made for the engine's memory. What a peer must know to read it is
small and does not change: the agent's metadata (how to connect, keys of the memory) and where the blocks lie
(``Memory``). A reader adds the peer's agent, pairs its own pieces of memory with the peer's
(``nixl_regions``) and starts one READ for all of them; the peer's model thread has no part in it.

The library is called from one thread of our own, so it needs no locks, and without its progress thread, which
would keep a core busy for ever. Progress is made by the calls themselves: the reader asks again and again
whether its bytes have arrived, and the peer takes messages in as long as somebody reads (``being_read``).

Bytes that were asked for may arrive until the transfer has ended, so ``read`` does not return before it has,
not even when it is cancelled: only then are the blocks free for others. A transfer that does not end in time
is cut off by forgetting the peer, which closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from orchestrator.embedded.kv_store import KVStore, Place
from orchestrator.embedded.nixl_regions import paired_pieces
from orchestrator.embedded.transfer_protocol import Memory

log = logging.getLogger(__name__)

MODULES = ("nixl._api", "nixl_cu12._api", "nixl_cu13._api")
"""`nixl` only chooses one of the others, and its own requirements name both."""

POLL_SECONDS = 0.0005
MAX_PEERS = 64
"""Agents of prefill engines that stay connected; the one that was read longest ago gives way."""

T = TypeVar("T")


class NixlError(Exception):
    """NIXL is not installed, cannot be started, or a transfer failed."""


def load_nixl() -> Any:
    """The module with ``nixl_agent``, its log lines going where the others go. Raises NixlError."""
    for name in MODULES:
        with contextlib.suppress(ImportError):
            module = importlib.import_module(name)
            logger = logging.getLogger("nixl")
            logger.handlers.clear()
            logger.propagate = True
            return module
    raise NixlError("NIXL is not installed: pip install --no-deps nixl-cu12==1.5.1 (docs/embedded-engine.md)")


def _release(handle: Any) -> None:
    try:
        handle.release()
    except Exception as error:  # under way still; the library tries again when the peer has been forgotten
        log.info("a NIXL transfer was not released: %s", error)


class NixlMemory:
    """``name`` is unique among all agents; ``transfer_seconds`` bounds one prompt's transfer."""

    def __init__(self, name: str, store: KVStore, *, transfer_seconds: float) -> None:
        self.bytes_read = 0
        self._name = name
        self._store = store
        self._place = store.place()
        self._transfer_seconds = transfer_seconds
        self._nixl = load_nixl()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nixl")
        self._agent: Any = None
        self._metadata = b""
        self._peers: OrderedDict[bytes, str] = OrderedDict()
        self._readers = 0
        self._progress: asyncio.Task[None] | None = None

    @property
    def memory(self) -> Memory:
        """What a peer needs to read this memory."""
        place = self._place
        return Memory(agent=self._metadata, data=place.data, states=place.states, blocks=place.blocks)

    async def open(self) -> None:
        """Make the agent and register the memory. Raises NixlError."""
        try:
            await self._call(self._open)
        except Exception as error:
            raise NixlError(f"NIXL cannot be started: {error}") from error

    async def close(self) -> None:
        if self._progress is not None:
            self._progress.cancel()
        await self._call(self._close)
        self._thread.shutdown(wait=False)

    @contextlib.asynccontextmanager
    async def being_read(self) -> AsyncIterator[None]:
        """While it lasts, messages of peers that connect and read are taken in."""
        self._readers += 1
        if self._progress is None:
            self._progress = asyncio.create_task(self._advance())
        try:
            yield
        finally:
            self._readers -= 1

    async def read(self, peer: Memory, theirs: Sequence[int], mine: Sequence[int]) -> None:
        """Fill the blocks ``mine`` with the peer's ``theirs``. Raises NixlError or TimeoutError. When it
        returns, however it does, nothing will be written to the blocks any more."""
        reading = asyncio.create_task(self._read(peer, theirs, mine))
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:
            while not reading.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([reading])
            reading.exception()  # nobody is left to hear of it
            raise

    async def _read(self, peer: Memory, theirs: Sequence[int], mine: Sequence[int]) -> None:
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._transfer_seconds
        try:
            handle, count = await self._call(self._begin, peer, theirs, mine)
            try:
                while not await self._call(self._arrived, handle):
                    if clock() > deadline:
                        raise TimeoutError(f"the blocks did not arrive within {self._transfer_seconds:g} s")
                    await asyncio.sleep(POLL_SECONDS)
            finally:
                await self._call(_release, handle)
        except Exception as error:
            await self._call(self._forget, peer.agent)
            if isinstance(error, TimeoutError | NixlError):
                raise
            raise NixlError(f"{type(error).__name__}: {error}") from error
        self.bytes_read += count

    async def _advance(self) -> None:
        try:
            while self._readers:
                await self._call(self._agent.get_new_notifs)
                await asyncio.sleep(POLL_SECONDS)
        except Exception:
            log.exception("NIXL makes no progress")
        finally:
            self._progress = None

    def _call(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    # On the library's thread

    def _open(self) -> None:
        config = self._nixl.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        self._agent = self._nixl.nixl_agent(self._name, config)
        regions = [(address, size, 0, "kv") for address, size in self._place.regions(self._store.layout)]
        self._agent.register_memory(regions, "DRAM")
        self._metadata = self._agent.get_agent_metadata()

    def _close(self) -> None:
        for metadata in list(self._peers):
            self._forget(metadata)
        self._agent = None

    def _begin(self, peer: Memory, theirs: Sequence[int], mine: Sequence[int]) -> tuple[Any, int]:
        place = Place(peer.data, peer.states, peer.blocks)
        here, there = paired_pieces(self._store.layout, self._place, mine, place, theirs)
        agent = self._agent
        handle = agent.initialize_xfer(
            "READ",
            agent.get_xfer_descs(here, "DRAM"),
            agent.get_xfer_descs(there, "DRAM"),
            self._connected(peer.agent),
        )
        if agent.transfer(handle) == "ERR":
            handle.release()
            raise NixlError("the transfer could not be started")
        return handle, int(here[:, 1].sum())

    def _arrived(self, handle: Any) -> bool:
        state = self._agent.check_xfer_state(handle)
        if state == "ERR":
            raise NixlError("the transfer failed")
        return bool(state == "DONE")

    def _connected(self, metadata: bytes) -> str:
        """The name of the peer's agent, which is added when it is new."""
        name = self._peers.pop(metadata, None)
        if name is None:
            if len(self._peers) >= MAX_PEERS:
                self._forget(next(iter(self._peers)))
            added = self._agent.add_remote_agent(metadata)
            name = added.decode() if isinstance(added, bytes) else str(added)
        self._peers[metadata] = name
        return name

    def _forget(self, metadata: bytes) -> None:
        name = self._peers.pop(metadata, None)
        if name is not None:
            try:
                self._agent.remove_remote_agent(name)
            except Exception as error:  # the library's own error class; the agent may be gone already
                log.info("NIXL agent %s was not removed: %s", name, error)
