"""The images of one prompt on their way through encode members, for all runs of the prompt together.

The first run that joins begins it, the last one that leaves ends it. An image waits for a place at the gate
``encode``, then for an encoder's answer; one that cannot be had there is left to the engine that computes the
prompt, or fails the request, as ``policy.encode_failure`` says. An encoder's own failure (500) fails it in
any case: the image would end the next engine too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.encoding import (
    FanOut,
    Image,
    UnusableEncoding,
    encode_leg,
    images_of,
    read_encoding,
    with_encodings,
)
from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.request_table import Event
from orchestrator.core.selection import Affinity
from orchestrator.hops.errors import (
    Failed,
    Garbled,
    GivenUp,
    HopError,
    Misconfigured,
    NoMembers,
    Overloaded,
    Refused,
    TimedOut,
    Unreachable,
)  # fmt: skip
from orchestrator.pool.member import Member
from orchestrator.server.admission import Busy
from render_tier.protocol.errors import ApiError

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange
    from orchestrator.server.run import Run


class Encoding:
    def __init__(self, exchange: Exchange, prompt: RenderedPrompt) -> None:
        self._exchange = exchange
        self._services = exchange.services
        self._prompt = prompt
        settings = self._services.settings
        self._fan_out = FanOut(
            images_of(prompt), settings.policy.encode_attempts, settings.admission.encode_per_request
        )
        self._tried: dict[str, set[str]] = {image.hash: set() for image in self._fan_out.images}
        """Members that have failed an image."""
        self._runs: list[Run] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._legs_begun = 0
        self._result: RenderedPrompt | None = None

    def __repr__(self) -> str:
        return f"<Encoding {len(self._runs)} runs, {len(self._tasks)} images under way>"

    def join(self, run: Run) -> None:
        """Its end is told to ``run``, unless that has left before."""
        if self._result is not None:
            run.encoded(self._result)
            return
        self._runs.append(run)
        if len(self._runs) == 1:
            self._index = run.index
            self._exchange.timing.mark("encode_started", perf_counter())
            self._go_on()

    def leave(self, run: Run) -> None:
        if run in self._runs:
            self._runs.remove(run)
        if not self._runs:
            self._cancel()

    def _go_on(self) -> None:
        for image in self._fan_out.begin():
            task = self._services.supervisor.spawn(
                self._encode(image), f"encode {self._exchange.base_id}", self._crashed
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._fan_out.over:
            self._exchange.timing.mark("encoded", perf_counter())
            given = self._services.settings.policy.encoded_images
            done = self._fan_out
            result = self._result = with_encodings(self._prompt, done.images, done.encodings, given)
            self._tell_runs(lambda run: run.encoded(result))

    async def _encode(self, image: Image) -> None:
        """One attempt."""
        try:
            async with self._services.admission.place("encode", self._exchange.who):
                encoding = await self._ask(image, self._choose(image))
        except ApiError as error:
            self._failed(image, error)
        else:
            self._services.metrics.encodes.labels("encoded").inc()
            self._fan_out.encoded(image, encoding)
            self._go_on()

    def _choose(self, image: Image) -> Member:
        """Raises ``NoMembers``."""
        services, exchange = self._services, self._exchange
        engines = services.deployment.generations
        member = services.encode_pool.choose(
            self._tried[image.hash],
            Affinity(session=image.hash),
            record=exchange.note_decision,
            suits=lambda member: (
                member.generation in engines and exchange.generation.allows(member.generation, anew=False)
            ),
        )
        if member is None:
            raise NoMembers("encode", "no encoder is available")
        # What it makes is of its weights, and no others' may go on with it.
        exchange.generation.settle(member.generation)
        return member

    async def _ask(self, image: Image, member: Member) -> Mapping[str, Any]:
        """Raises ``HopError``."""
        services, exchange = self._services, self._exchange
        self._legs_begun += 1
        leg_id = f"{exchange.base_id}-{self._index}e{self._legs_begun}"
        budget = exchange.budget(services.settings.timeouts.encode)
        span = exchange.span.hop("encode", member=member.url, leg=leg_id)
        request, headers = encode_leg(self._prompt, image, leg_id), exchange.engine_headers(span, budget)
        try:
            with member.busy():
                params = await services.encode_client.encode(member.url, request, headers, budget)
            encoding = _usable(image, member, params)
        except HopError as error:
            span.end(error)
            self._tried[image.hash].add(member.url)
            services.note_failure(services.encode_pool, member, error, leg_id)
            raise
        finally:
            span.end()
        services.encode_pool.succeeded(member)
        return encoding

    def _failed(self, image: Image, error: ApiError) -> None:
        services = self._services
        safe = isinstance(error, HopError) and error.retry_safe and services.encode_pool.available
        if self._fan_out.failed(image, retry_safe=safe):
            services.metrics.retries.labels("encode").inc()
            self._go_on()
            return
        services.metrics.encodes.labels(_result(error)).inc()
        if _ends_engines(error) or services.settings.policy.encode_failure == "fail":
            self._cancel()
            self._tell_runs(lambda run: run.post(Event.ENCODE_FAILED, error))
            return
        self._go_on()

    def _tell_runs(self, tell: Callable[[Run], None]) -> None:
        """Those that are still there when it is their turn: the end of one may be the end of all."""
        while self._runs:
            run = self._runs[0]
            tell(run)
            self.leave(run)

    def _crashed(self, error: Exception) -> None:
        for run in list(self._runs):
            run.crashed(error)

    def _cancel(self) -> None:
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()


def _usable(image: Image, member: Member, params: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Raises ``Garbled``."""
    try:
        return read_encoding(image, params)
    except UnusableEncoding as error:
        message = "the encoder's answer cannot be used"
        raise Garbled("encode", message, detail=str(error), member=member.url) from error


_RESULTS: Final[tuple[tuple[type[ApiError], str], ...]] = (
    (Busy, "busy"),
    (NoMembers, "no_member"),
    (Overloaded, "overloaded"),
    (TimedOut, "timeout"),
    (Unreachable, "unreachable"),
    (Refused, "refused"),
    (Misconfigured, "refused"),
    (Garbled, "unusable"),
    (GivenUp, "given_up"),
)


def _result(error: ApiError) -> str:
    """What an image that is not encoded counts as."""
    return next((name for kind, name in _RESULTS if isinstance(error, kind)), "failed")


def _ends_engines(error: ApiError) -> bool:
    """The encoder itself has failed at the image; a gateway's 5xx before it is about the way."""
    return isinstance(error, Failed) and not isinstance(error, GivenUp) and not error.retry_safe
