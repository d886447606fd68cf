"""Reading what a member reports of itself. None of these reads is an inference, and none changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orchestrator.core.capabilities import (
    NOTHING,
    Facts,
    from_abort_route,
    from_metrics,
    from_models,
    from_ready,
    from_server_info,
    from_version,
    is_paused,
)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


Get = Callable[[str], Awaitable[Answer | None]]
"""Given a URL: the answer to a GET, or None when there was none in time. Must not raise."""


async def read_engine(url: str, get: Get) -> Facts | None:
    """None when the engine did not answer all of it: what it is must be known before it is used."""
    models, version, metrics, abort, info = await asyncio.gather(
        get(f"{url}/v1/models"),
        get(f"{url}/version"),
        get(f"{url}/metrics"),
        get(f"{url}/abort_requests"),
        get(f"{url}/server_info?config_format=json"),
    )
    if models is None or version is None or metrics is None or abort is None or info is None:
        return None
    # The whole configuration says most; where it is, the other abort route may be of the development mode.
    facts = _read(info, from_server_info)
    for less in (
        _read(models, from_models),
        _read(version, from_version),
        _read(metrics, from_metrics),
        from_abort_route(abort.status),
    ):
        facts = facts.over(less)
    return facts


async def read_render(url: str, get: Get) -> Facts | None:
    """None when the render tier did not answer all of it."""
    ready, models, version = await asyncio.gather(
        get(f"{url}/ready"), get(f"{url}/v1/models"), get(f"{url}/version")
    )
    if ready is None or models is None or version is None:
        return None
    # One that is busy or stopping says what it is all the same.
    return from_ready(ready.body).over(_read(models, from_models)).over(_read(version, from_version))


@dataclass(frozen=True, slots=True)
class Pause:
    told: bool
    """vLLM tells in its development mode alone."""
    paused: bool


async def read_pause(url: str, get: Get) -> Pause | None:
    """Whether an engine is paused; None when it did not answer."""
    answer = await get(f"{url}/is_paused")
    if answer is None:
        return None
    paused = is_paused(answer.body) if answer.status == 200 else None
    return Pause(paused is not None, paused is True)


def _read(answer: Answer, reader: Callable[[bytes], Facts]) -> Facts:
    """A route that is not there, or not for us, reports nothing."""
    return reader(answer.body) if answer.status == 200 else NOTHING
