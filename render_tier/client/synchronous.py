"""`Client`: the calls over httpx's blocking client."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any, Self

import httpx

from render_tier.client import wire
from render_tier.client.errors import ClientError, Refused, Unreachable
from render_tier.client.records import Chat, Prompt, Rollout, Sample
from render_tier.client.retries import Retries
from render_tier.client.rollouts import Batch, Job


class Client:
    """``url``: the orchestrator. ``render_url``: the render tier, for `render` and `derender`.

    Every method raises ClientError. Use it in ``with``, or close it.
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
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """``timeout``: seconds in which nothing is heard of a call. ``headers``: of every call, as
        ``Authorization``."""
        self._url = url.rstrip("/")
        self._render_url = (render_url or url).rstrip("/")
        self._retries = retries or Retries()
        self._http = httpx.Client(
            headers={**(headers or {}), "content-type": "application/json"},
            timeout=timeout,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def render(self, request: wire.Json) -> Prompt:
        """A chat request to token IDs and sampling parameters."""
        reply, _ = self._send(self._render_url, wire.call(wire.RENDER, request))
        return wire.read_prompt(reply.content, reply.headers)

    def generate(
        self, prompt: Prompt | Sequence[int], sampling_params: wire.Json | None = None, **fields: Any
    ) -> list[Sample]:
        """Samples of a rendered prompt or of bare IDs; ``fields``: others of the generate request."""
        ids = prompt.token_ids if isinstance(prompt, Prompt) else prompt
        reply, _ = self._send(self._url, wire.generate_call(prompt, sampling_params, fields))
        return wire.read_generated(reply.content, reply.headers, ids)

    def derender(self, request: wire.Json, sample: Sample) -> dict[str, Any]:
        """A sample of `generate` as the chat completion of ``request``."""
        reply, _ = self._send(self._render_url, wire.derender_call(request, sample))
        return wire.read_message(reply.content)

    def chat(self, request: wire.Json) -> Chat:
        """A chat with the IDs of its prompt and outputs."""
        return (self._chat(request))[0]

    def rollouts(
        self,
        requests: Sequence[wire.Json],
        *,
        samples: int = 1,
        concurrency: int = 32,
        groups: Sequence[Hashable] | None = None,
    ) -> Iterator[Rollout]:
        """``samples`` of each chat request, as they are done, at most ``concurrency`` under way.
        ``groups``, one for each request, share these evenly, however many requests each has.

        A sample that fails for good is a record with its error. What is not read to the end is not begun.
        """
        batch = Batch(requests, samples, groups)
        with ThreadPoolExecutor(concurrency, "rollouts") as pool:
            running: set[Future[Rollout]] = set()
            while True:
                while len(running) < concurrency and (job := batch.begin()) is not None:
                    running.add(pool.submit(self._rollout, job))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                finished = [future.result() for future in done]
                for rollout in finished:
                    batch.end(rollout)
                for rollout in finished:
                    yield rollout

    def _rollout(self, job: Job) -> Rollout:
        try:
            return job.done(*self._chat(job.request))
        except ClientError as error:
            return job.failed(error, error.attempts)

    def _chat(self, request: wire.Json) -> tuple[Chat, int]:
        reply, attempts = self._send(self._url, wire.chat_call(request))
        return wire.read_chat(reply.content, reply.headers), attempts

    def _send(self, url: str, call: wire.Call) -> tuple[httpx.Response, int]:
        """The whole answer, and the attempts that it took."""
        attempt = 0
        while True:
            attempt += 1
            headers: Mapping[str, str] = {}
            try:
                reply = self._http.post(url + call.path, content=call.body)
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
            time.sleep(pause)
