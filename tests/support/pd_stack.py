"""Orchestrators before a pair of real engines, and the books of all of them: what is under way, what is held,
and what was left to a lease."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support import vllm
from tests.support.completions import MODEL
from tests.support.middlebox import Middlebox
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server

IDLE = (
    *("pd_in_flight", "pd_runs", "pd_leases", "pd_places", "pd_exchanges", "pd_session_streams", "pd_tasks"),
)
"""Of an orchestrator: zero when it is idle."""
FREE = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
"""Of an engine: zero when it holds nothing."""
FREE_WITHIN = 20.0
"""Seconds: well below the engines' lease of 30, so that KV which only the lease would free is found."""
LEASE_OVER_WITHIN = 60.0
"""Seconds: for KV that is left to its lease."""

KV_BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 4
"""SmolLM2's: layers, keys and values, heads, their size, float32."""
PATIENT = {
    # An engine that computes on a busy machine answers a probe late; one that has died refuses it at once.
    "health": {"timeout": 30.0},
}
"""Settings of each orchestrator."""
WATCHED = PATIENT | {
    # 3 s, a tenth of the engines' own lease.
    "lease": {"engine_seconds": 4.5, "kv_bytes_per_token": KV_BYTES_PER_TOKEN},
    # One decode makes the next one wait with its KV held.
    "admission": {"decode_per_member": 1},
}
"""Settings of the orchestrator between middleboxes."""


@dataclass(frozen=True)
class Stack:
    pair: vllm.Pair
    render: ServerProcess
    apart: ServerProcess
    """The orchestrator of four hops."""
    together: ServerProcess
    """That of three hops: the decode engine prefills."""
    watched: ServerProcess
    """Another of four hops, with middleboxes before the engines."""
    prefill_box: Middlebox
    decode_box: Middlebox

    @property
    def engines(self) -> tuple[ServerProcess, ServerProcess]:
        return self.pair.prefill, self.pair.decode

    @property
    def orchestrators(self) -> tuple[ServerProcess, ...]:
        return self.apart, self.together, self.watched

    def revive(self) -> None:
        """Start those engines anew that a test has killed."""
        for engine in self.engines:
            if not engine.running:
                vllm.restart(engine)
        for orchestrator in self.orchestrators:
            while not ready(orchestrator):
                time.sleep(0.1)


@contextmanager
def pd_stack(model: Path, log_dir: Path, **transfer: object) -> Iterator[Stack]:
    """``transfer`` as for `vllm.nixl_pair`."""
    patient, watchful = log_dir / "patient.json", log_dir / "watched.json"
    patient.write_text(json.dumps(PATIENT))
    watchful.write_text(json.dumps(WATCHED))
    with ExitStack() as exits:
        pair = exits.enter_context(vllm.nixl_pair(model, MODEL, log_dir, **transfer))
        boxes = [exits.enter_context(Middlebox(engine)) for engine in (pair.prefill, pair.decode)]
        render = exits.enter_context(render_tier_server(model, "--served-model-name", MODEL, log_dir=log_dir))
        apart, together, watched = (
            exits.enter_context(
                orchestrator_server("--render", render.url, *options, log_dir=log_dir, name=name)
            )
            for name, options in (
                ("apart", ("--prefill", pair.prefill.url, "--decode", pair.decode.url, "--config", patient)),
                ("together", ("--decode", pair.decode.url, "--config", patient)),
                ("watched", ("--prefill", boxes[0].url, "--decode", boxes[1].url, "--config", watchful)),
            )
        )
        yield Stack(pair, render, apart, together, watched, *boxes)


def ready(server: ServerProcess) -> bool:
    return httpx.get(f"{server.url}/ready", timeout=30, trust_env=False).status_code == 200


async def eventually(condition: Callable[[], bool], otherwise: str, within: float = 120.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, otherwise
        await asyncio.sleep(0.05)


# ---- books -------------------------------------------------------------------------------------------------


def samples(server: ServerProcess, *names: str) -> list[Sample]:
    """Of these names. Only their lines are read: an engine has hundreds of others."""
    page = httpx.get(f"{server.url}/metrics", timeout=30, trust_env=False).text
    lines = "".join(line for line in page.splitlines(keepends=True) if line.startswith(names))
    read = (sample for family in text_string_to_metric_families(lines) for sample in family.samples)
    return [sample for sample in read if sample.name in names]


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    return sum(sample.value for sample in samples(server, name) if labels.items() <= sample.labels.items())


def generations(server: ServerProcess) -> float:
    """How many requests for a generation an engine has answered, by its own count."""
    return metric(server, "http_requests_total", handler="/inference/v1/generate")


def pulled(stack: Stack) -> float:
    """Prompt tokens that the decode engine got from the prefill engine."""
    name = "vllm:prompt_tokens_by_source_total"
    return metric(stack.pair.decode, name, source="external_kv_transfer")


def stranded(server: ServerProcess) -> dict[str, float]:
    """By reason: how often an orchestrator has left KV to a lease."""
    return {
        sample.labels["reason"]: sample.value
        for sample in samples(server, "pd_stranded_kv_total")
        if sample.value
    }


def busy(server: ServerProcess, names: tuple[str, ...]) -> dict[str, float]:
    """Which of these are not zero; all must exist."""
    found = samples(server, *names)
    assert set(names) == {sample.name for sample in found}
    return {f"{server.name} {sample.name}": sample.value for sample in found if sample.value}


def becomes_free(*expected: tuple[ServerProcess, tuple[str, ...]], within: float = FREE_WITHIN) -> None:
    end = time.monotonic() + within
    while left := {name: value for server, names in expected for name, value in busy(server, names).items()}:
        assert time.monotonic() < end, left
        time.sleep(0.1)


def everything_becomes_free(stack: Stack, within: float = FREE_WITHIN) -> None:
    """Nothing is under way in an orchestrator, nothing held on an engine."""
    becomes_free(
        *((orchestrator, IDLE) for orchestrator in stack.orchestrators),
        *((engine, FREE) for engine in stack.engines),
        within=within,
    )
