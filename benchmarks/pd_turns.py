"""What it saves a second turn that the prefill engine reads the KV which decode has kept of the first.

On a real pair whose prefill engine keeps no prefix cache: the case of a conversation that another prefill
engine has begun, or whose blocks have been overwritten. Each conversation has two turns, the first one whole,
the second one a stream; they are asked in turn through an orchestrator that reuses turns and one that does
not. The second turns must say the same.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measure import cpu_seconds, machine, median
from tests.support import vllm
from tests.support.completions import ask, body, client
from tests.support.processes import ServerProcess, orchestrator_server, render_tier_server
from tests.support.prompts import distinct_prompts

WITH, WITHOUT = "with reuse", "without"
KEPT = 60
"""Seconds that the decode engine keeps a turn."""
TRANSFER = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": KEPT}
# What nobody reads stays for a minute, so there has to be room.
OPTIONS = ("--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(2**31))
NEW_TOKENS = 32
"""That the second turn adds."""


@dataclass
class Way:
    """One orchestrator, and what the second turns through it took: milliseconds, CPU seconds of the
    engines."""

    front: ServerProcess
    first: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    said: list[list[int]] = field(default_factory=list)
    """Their output."""


@contextmanager
def servers(model: Path, name: str, logs: Path) -> Iterator[tuple[dict[str, Way], vllm.Pair]]:
    with ExitStack() as exits:
        pair = vllm.Pair(
            *(
                vllm.pair_engine(
                    model, name, role, *OPTIONS, log_dir=logs, kv_connector_extra_config=TRANSFER
                )
                for role in ("prefill", "decode")
            )
        )
        for engine in (pair.prefill, pair.decode):
            exits.callback(engine.stop)
            vllm.start(engine)
        render = exits.enter_context(render_tier_server(model, "--served-model-name", name, log_dir=logs))
        members = ("--prefill", pair.prefill.url, "--decode", pair.decode.url)
        ways = {}
        for number, way in enumerate((WITH, WITHOUT)):
            settings = logs / f"settings-{number}.json"
            declared = {"engines": {"turn_seconds": KEPT}}
            settings.write_text(json.dumps({"declared": declared, "turns": {"reuse": way == WITH}}))
            options = ("--render", render.url, *members, "--config", settings)
            front = orchestrator_server(*options, log_dir=logs, name=f"front-{number}")
            ways[way] = Way(exits.enter_context(front))
        yield ways, pair


async def converse(way: Way, pair: vllm.Pair, prompt: list[int], more: list[int], output: int) -> None:
    """Two turns, of which the second is measured."""
    async with client(way.front) as http:
        sent = body(prompt, max_tokens=output, ignore_eos=True)
        [answer] = await ask(http, sent, False)
        second = body(prompt + answer.token_ids + more, max_tokens=4, ignore_eos=True, stream=True)
        before, began = _engines_cpu(pair), perf_counter()
        said: list[int] = []
        async with http.stream("POST", "/completions", json=second) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
                    if not said:
                        way.first.append((perf_counter() - began) * 1000)
                    said += choice["token_ids"]
        way.cpu.append(_engines_cpu(pair) - before)
        way.said.append(said)


def _engines_cpu(pair: vllm.Pair) -> float:
    return cpu_seconds(pair.prefill.pid) + cpu_seconds(pair.decode.pid)


def read_back(prefill: ServerProcess) -> float:
    """Prompt tokens that the prefill engine has read from the decode engine."""
    page = httpx.get(f"{prefill.url}/metrics", timeout=30, trust_env=False).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "vllm:prompt_tokens_by_source_total"
        and sample.labels["source"] == "external_kv_transfer"
    )


def report(model: Path, name: str, prompt: int, output: int, conversations: int) -> None:
    """Measure so many conversations each way and print what came of it."""
    lengths = (*(prompt,) * conversations, NEW_TOKENS)
    *beginnings, more = distinct_prompts(model, lengths, seed=21)
    with (
        tempfile.TemporaryDirectory(prefix="pd-turns-") as scratch,
        servers(model, name, Path(scratch)) as (ways, pair),
    ):
        for way in ways.values():  # connections and handshakes
            asyncio.run(converse(Way(way.front), pair, beginnings[0][: prompt // 2], more, 4))
        before = read_back(pair.prefill)
        for beginning in beginnings:
            for way in ways.values():
                asyncio.run(converse(way, pair, beginning, more, output))
        read = read_back(pair.prefill) - before
    reused, computed = ways[WITH], ways[WITHOUT]
    same = reused.said == computed.said
    print(machine())
    for title, way in ways.items():
        print(
            f"turn two {title}: TTFT {median(way.first):.0f} ms (median of {len(way.first)}, "
            f"{min(way.first):.0f} to {max(way.first):.0f}), engines' CPU {median(way.cpu):.2f} s"
        )
    ratio = median(computed.first) / median(reused.first)
    print(
        f"prompts of {prompt} + {output} + {NEW_TOKENS} tokens; read back from decode: {read:.0f} tokens; "
        f"TTFT ratio {ratio:.2f}; outputs {'equal' if same else 'DIFFER'}"
    )
    assert same, "a reused turn changed the output"
