"""One generate call from claim to last token: pulls KV, submits the job, turns events into bytes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from orchestrator.embedded.backend import PromptLogprobs
from orchestrator.embedded.engine import (
    Aborted,
    Done,
    Engine,
    Event,
    Failed,
    Held,
    Job,
    Loaded,
    LoadNow,
    Started,
    Token,
)
from orchestrator.embedded.nixl_memory import NixlMemory
from orchestrator.embedded.replies import ABORTED, Choice, Stream, error_frames, whole
from orchestrator.embedded.requests import GenerateCall, RemoteKV
from orchestrator.embedded.scheduler import QueueFull, TooLarge
from orchestrator.embedded.transfer_client import KVTransferError, Pull
from orchestrator.embedded.transfer_protocol import VERSION, Hello, prompt_digest
from orchestrator.embedded.transfer_wire import WireLimits
from render_tier.protocol.errors import ApiError, BadRequest, Unavailable
from render_tier.protocol.generate import KVTransferParams


@dataclass(frozen=True)
class EngineIdentity:
    """How decode engines reach this engine's KV, and what they must have in common with it."""

    engine_id: str
    transfer_host: str
    transfer_port: int
    compatibility: str


class Session:
    """Entering it claims remote KV, queues the job and waits until it runs: every refusal happens there,
    before a byte of the answer. Leaving it aborts what has not ended."""

    def __init__(
        self,
        engine: Engine,
        identity: EngineIdentity,
        limits: WireLimits,
        call: GenerateCall,
        request_id: str,
        nixl: NixlMemory | None,
    ) -> None:
        self.request_id = request_id
        self._nixl = nixl
        self.job_id = f"{request_id}-{secrets.token_hex(8)}"
        self._engine = engine
        self._identity = identity
        self._limits = limits
        self._call = call
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._first: Event | None = None
        self._aborted = False

    async def __aenter__(self) -> Self:
        try:
            if self._call.remote is not None:
                await self._start_remote(self._call.remote)
            else:
                self._submit()
                self._first = await self._events.get()
        except BaseException:
            self.abort()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.abort()

    def abort(self) -> None:
        """End the job, or keep it from starting if its KV is still being claimed."""
        self._aborted = True
        self._engine.abort(self.job_id)
        # Who waited for the word to load may have been cancelled before he heard it.
        for event in self._ready():
            self._take(event)

    async def answer(self) -> bytes:
        """The whole answer. Raises ApiError."""
        call = self._call
        choices = [Choice(index) for index in range(call.n)]
        logprobs: PromptLogprobs | None = None
        params: dict[str, Any] | None = None
        while True:
            match await self._next():
                case Token(index, sampled, ending):
                    choices[index].add(sampled, ending)
                case Done(prompt_logprobs, held):
                    logprobs, params = prompt_logprobs, self._params(held)
                    break
                case Aborted():
                    for choice in choices:
                        choice.ending = choice.ending or ABORTED
                    break
                case Failed(message):
                    raise ApiError(message)
                case _:
                    pass
        return whole(
            request_id=self.request_id,
            model=call.model,
            created=int(time.time()),
            prompt=call.prompt,
            choices=choices,
            return_prompt=call.return_token_ids,
            prompt_logprobs=logprobs,
            kv_transfer_params=params,
        )

    async def stream(self) -> AsyncIterator[bytes]:
        """Pieces of the event stream, whole frames each; a failure becomes an error frame."""
        call = self._call
        stream = Stream(
            request_id=self.request_id,
            prompt=call.prompt,
            choices=[Choice(index) for index in range(call.n)],
            interval=call.stream_interval,
            include_usage=call.include_usage,
            continuous_usage=call.continuous_usage,
            return_prompt=call.return_token_ids,
        )
        over = False
        while not over:
            frames = []
            for event in [await self._next(), *self._ready()]:
                match event:
                    case Token(index, sampled, ending):
                        stream.choices[index].add(sampled, ending)
                        frames.append(stream.advance(index))
                    case Done():
                        frames.append(stream.end())
                        over = True
                    case Aborted():
                        frames.append(stream.abort() + stream.end())
                        over = True
                    case Failed(message):
                        frames.append(error_frames(ApiError(message)))
                        over = True
                    case _:
                        pass
            piece = b"".join(frames)
            if piece:
                yield piece

    def _submit(self) -> None:
        if self._aborted:
            self._events.put_nowait(Aborted())
            return
        call = self._call
        job = Job(
            self.job_id,
            call.prompt,
            call.settings,
            n=call.n,
            hold=call.hold,
            remote=call.remote is not None,
        )
        try:
            self._engine.submit(job, self._listen)
        except QueueFull as error:
            raise Unavailable(f"The engine is at capacity: {error}.") from error
        except TooLarge as error:
            raise BadRequest(f"The request does not fit this engine: {error}.") from error

    def _listen(self, event: Event) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
            self._loop.call_soon_threadsafe(self._take, event)

    def _take(self, event: Event) -> None:
        """The blocks of a job that is told to load are its own until the load is said to be over."""
        if self._aborted and isinstance(event, LoadNow):
            self._engine.loaded(self.job_id, blocks=event.blocks, ok=False, seconds=0.0)
            event = Aborted()
        self._events.put_nowait(event)

    async def _start_remote(self, remote: RemoteKV) -> None:
        hello = Hello(
            version=VERSION,
            compatibility=self._identity.compatibility,
            engine_id=remote.engine_id,
            request_id=remote.request_id,
            block_ids=list(remote.block_ids),
            tokens=len(self._call.prompt),
            prompt_digest=prompt_digest(self._call.prompt),
            transfer="socket" if self._nixl is None else "nixl",
        )
        async with await Pull.claim(remote.host, remote.port, hello, self._limits) as pull:
            self._submit()
            event = await self._queued(pull)
            if isinstance(event, LoadNow):
                outcome = await self._load(pull, remote, event.blocks)
                if outcome is Loaded.REJECTED:
                    raise KVTransferError(
                        "The KV that arrived is not that of the prompt.", param="kv_transfer_params"
                    )
                self._first = Started() if outcome is Loaded.READY else Aborted()
            else:
                self._first = event

    async def _queued(self, pull: Pull) -> Event:
        """The event that ends the wait in the queue; the lease is renewed meanwhile."""
        while True:
            try:
                async with asyncio.timeout(pull.heartbeat_interval):
                    return await self._events.get()
            except TimeoutError:
                await pull.heartbeat()

    async def _load(self, pull: Pull, remote: RemoteKV, blocks: tuple[int, ...]) -> Loaded:
        complete, outcome = False, Loaded.REJECTED
        began = time.monotonic()
        try:
            if pull.bytes != self._engine.bytes_of(blocks):
                raise KVTransferError(
                    f"The prefill engine holds {pull.bytes} bytes of KV for this prompt, "
                    f"{self._engine.bytes_of(blocks)} were expected.",
                    param="kv_transfer_params",
                )
            if self._nixl is None:
                await pull.pull(self._engine.buffers(blocks))
            else:
                await pull.read(self._nixl, remote.block_ids, blocks)
            complete = True
        finally:
            took = time.monotonic() - began
            outcome = self._engine.loaded(self.job_id, blocks=blocks, ok=complete, seconds=took)
        return outcome

    async def _next(self) -> Event:
        if self._first is not None:
            event, self._first = self._first, None
            return event
        return await self._events.get()

    def _ready(self) -> list[Event]:
        """Events that are there already."""
        ready = []
        while not self._events.empty():
            ready.append(self._events.get_nowait())
        return ready

    def _params(self, held: Held | None) -> dict[str, Any] | None:
        if held is None:
            return None
        params = KVTransferParams(
            do_remote_prefill=True,
            remote_block_ids=[list(held.blocks)],
            remote_engine_id=self._identity.engine_id,
            remote_request_id=self.job_id,
            remote_host=self._identity.transfer_host,
            remote_port=self._identity.transfer_port,
            remote_num_tokens=held.tokens,
            remote_blocks_expiry_time=held.expires_at,
        )
        built: dict[str, Any] = msgspec.to_builtins(params)
        return built
