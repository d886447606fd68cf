"""Engines and requests for the tests of the embedded engine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from orchestrator.embedded.assembly import EngineOptions
from orchestrator.embedded.engine import EngineSettings
from orchestrator.embedded.inprocess import RunningEngine, running_engine

VOCABULARY = 256
EOS = 3
NAME = "tiny"
GENERATE = "/inference/v1/generate"


class Client:
    """One engine over HTTP."""

    def __init__(self, running: RunningEngine) -> None:
        self.running = running
        self.url = running.url
        self.http = httpx.Client(base_url=running.url, timeout=60)

    def post(self, token_ids: Sequence[int], **fields: Any) -> httpx.Response:
        """Greedy unless told otherwise; ``sampling`` is merged into the sampling params."""
        return self.http.post(GENERATE, json=body(token_ids, **fields))

    def generate(self, token_ids: Sequence[int], **fields: Any) -> dict[str, Any]:
        response = self.post(token_ids, **fields)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def tokens(self, token_ids: Sequence[int], **fields: Any) -> list[int]:
        tokens: list[int] = self.generate(token_ids, **fields)["choices"][0]["token_ids"]
        return tokens

    def prefill(self, token_ids: Sequence[int]) -> dict[str, Any]:
        """The prefill leg: kv_transfer_params."""
        answer = self.generate(
            token_ids, sampling={"max_tokens": 1}, kv_transfer_params={"do_remote_decode": True}
        )
        params: dict[str, Any] = answer["kv_transfer_params"]
        assert params is not None
        return params

    def stream(self, token_ids: Sequence[int], **fields: Any) -> list[dict[str, Any]]:
        response = self.post(token_ids, stream=True, **fields)
        assert response.status_code == 200, response.text
        return frames(response.text)

    def idle(self) -> None:
        """Check that nothing runs, waits or is held. What ends by itself gets a while to do so: a prefill
        engine frees blocks when it reads that they have arrived, which may be after decode has answered."""
        for _ in range(1000):
            gauges = self.running.engine.gauges()
            if (gauges.running, gauges.waiting, gauges.leases, gauges.blocks_used) == (0, 0, 0, 0):
                return
            time.sleep(0.01)
        raise AssertionError(f"not idle: {self.running.engine}")


def body(
    token_ids: Sequence[int], *, sampling: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    params = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, **(sampling or {})}
    return {"token_ids": list(token_ids), "sampling_params": params, **fields}


def frames(text: str) -> list[dict[str, Any]]:
    """The objects of an event stream, which must end with [DONE]."""
    parts = text.split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""], parts[-2:]
    assert all(part.startswith("data: ") for part in parts[:-1])
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about; the test's own timeout is the bound."""
    while not condition():
        time.sleep(0.005)


@contextmanager
def serving(model: Path, *, settings: EngineSettings | None = None, **options: Any) -> Iterator[Client]:
    """An engine of the tiny model (or of ``script``) behind its real server."""
    chosen = EngineOptions(
        model=model, served_names=(NAME,), engine=settings or EngineSettings(lease_seconds=20.0), **options
    )
    with running_engine(chosen) as running:
        client = Client(running)
        try:
            yield client
        finally:
            client.http.close()


def prompt(length: int, seed: int = 1) -> list[int]:
    """Pseudo-random tokens above the special ones."""
    value, tokens = seed, []
    for _ in range(length):
        value = (value * 1103515245 + 12345) % 2**31
        tokens.append(4 + value // 64 % (VOCABULARY - 4))
    return tokens
