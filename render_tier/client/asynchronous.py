"""`AsyncClient`: the calls over httpx's asynchronous client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from render_tier.client import wire
from render_tier.client.errors import ClientError, Refused, Unreachable
from render_tier.client.records import Chat, Prompt, Rollout, Sample
from render_tier.client.retries import Retries
from render_tier.client.rollouts import Batch, Job


class AsyncClient:
    """``url``: the orchestrator. ``render_url``: the render tier, for `render` and `derender`.

    Every method raises ClientError. Use it in ``async with``, or close it.
    """

    def __init__(
        self,
        url: str,
        *,
        render_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        connections: int = 256,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """``timeout``: seconds in which nothing is heard of a call. ``headers``: of every call, as
        ``Authorization``."""
        self._url = url.rstrip("/")
        self._render_url = (render_url or url).rstrip("/")
        self._retries = retries or Retries()
        self._http = httpx.AsyncClient(
            headers={**(headers or {}), "content-type": "application/json"},
            timeout=timeout,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def render(self, request: wire.Json) -> Prompt:
        """A chat request to token IDs and sampling parameters."""
        reply, _ = await self._send(self._render_url, wire.call(wire.RENDER, request))
        return wire.read_prompt(reply.content, reply.headers)

    async def generate(
        self, prompt: Prompt | Sequence[int], sampling_params: wire.Json | None = None, **fields: Any
    ) -> list[Sample]:
        """Samples of a rendered prompt or of bare IDs; ``fields``: others of the generate request."""
        ids = prompt.token_ids if isinstance(prompt, Prompt) else prompt
        reply, _ = await self._send(self._url, wire.generate_call(prompt, sampling_params, fields))
        return wire.read_generated(reply.content, reply.headers, ids)

    async def derender(self, request: wire.Json, sample: Sample) -> dict[str, Any]:
        """A sample of `generate` as the chat completion of ``request``."""
        reply, _ = await self._send(self._render_url, wire.derender_call(request, sample))
        return wire.read_message(reply.content)

    async def chat(self, request: wire.Json) -> Chat:
        """A chat with the IDs of its prompt and outputs."""
        return (await self._chat(request))[0]

    async def rollouts(
        self,
        requests: Sequence[wire.Json],
        *,
        samples: int = 1,
        concurrency: int = 32,
        groups: Sequence[Hashable] | None = None,
    ) -> AsyncIterator[Rollout]:
        """``samples`` of each chat request, as they are done, at most ``concurrency`` under way.
        ``groups``, one for each request, share these evenly, however many requests each has.

        A sample that fails for good is a record with its error. What is not read to the end is cancelled.
        """
        batch = Batch(requests, samples, groups)
        running: set[asyncio.Task[Rollout]] = set()
        try:
            while True:
                while len(running) < concurrency and (job := batch.begin()) is not None:
                    running.add(asyncio.create_task(self._rollout(job)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                finished = [task.result() for task in done]
                for rollout in finished:
                    batch.end(rollout)
                for rollout in finished:
                    yield rollout
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _rollout(self, job: Job) -> Rollout:
        try:
            return job.done(*await self._chat(job.request))
        except ClientError as error:
            return job.failed(error, error.attempts)

    async def _chat(self, request: wire.Json) -> tuple[Chat, int]:
        reply, attempts = await self._send(self._url, wire.chat_call(request))
        return wire.read_chat(reply.content, reply.headers), attempts

    async def _send(self, url: str, call: wire.Call) -> tuple[httpx.Response, int]:
        """The whole answer, and the attempts that it took."""
        attempt = 0
        while True:
            attempt += 1
            headers: Mapping[str, str] = {}
            try:
                reply = await self._http.post(url + call.path, content=call.body)
                if reply.is_success:
                    return reply, attempt
                headers = reply.headers
                error: ClientError = Refused(reply.status_code, reply.content)
            except httpx.HTTPError as fault:
                error = Unreachable(f"{url}{call.path}: {type(fault).__name__}: {fault}")
            pause = self._retries.pause_after(attempt, error, headers)
            if pause is None:
                error.attempts = attempt
                raise error
            await asyncio.sleep(pause)
