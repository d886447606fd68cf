"""CPU time of one streaming derender call at the 10th, 100th, 1,000th and 10,000th one-token chunk.

A reasoning answer of the Qwen3 tokenizer with the parsers qwen3 and hermes. Ours runs one whole stream and
is measured over windows of chunks around each position, twice: as a vLLM client calls (chat request and
prompt IDs in every call) and with the context digest instead. vLLM is sampled at each position with a
`stream_state` that holds the chunks before it, which is what a client would send there; its cost does not
depend on how the state came about.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer

from benchmarks.measure import cpu_seconds, machine, print_table, ratio
from tests.support import vllm
from tests.support.processes import ServerProcess, render_tier_server

ROOT = Path(__file__).resolve().parent.parent
QWEN3 = ROOT / ".cache" / "models" / "qwen3"
PATH = "/v1/chat/completions/derender"
REASONING_SHARE = 0.6
PROSE = "The kettle sings while snow falls on the harbour, and 17 gulls argue about the price of herring. "
CHAT = {
    "model": "qwen3",
    "stream": True,
    "messages": [
        {"role": "system", "content": "You look after a harbour café. " * 8},
        {"role": "user", "content": "How cold is it, and what should we brew?"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
            },
        }
    ],
}


@dataclass
class Cost:
    """Of one call at one position: CPU and wall milliseconds, body bytes."""

    cpu: float
    wall: float
    sent: int
    received: int


class Stream:
    """One generation of one-token chunks and the calls that derender it."""

    def __init__(self, length: int) -> None:
        tokenizer = Tokenizer.from_file(str(QWEN3 / "tokenizer.json"))
        prose = tokenizer.encode(PROSE).ids
        reasoning = int(length * REASONING_SHARE)
        [think], [end] = (tokenizer.encode(marker).ids for marker in ("<think>", "</think>"))
        ids = [think, *(prose * (length // len(prose) + 1))][:reasoning]
        ids += [end, *(prose * (length // len(prose) + 1))]
        self.output: list[int] = ids[:length]
        self.prompt: list[int] = []

    def render(self, client: httpx.Client) -> None:
        """Take the prompt from a server's render endpoint."""
        self.prompt = (
            client.post("/v1/chat/completions/render", json=CHAT).raise_for_status().json()["token_ids"]
        )

    def chunk(self, position: int) -> dict[str, Any]:
        choice = {
            "index": 0,
            "token_ids": [self.output[position]],
            "finish_reason": None,
            "stop_reason": None,
        }
        return {"request_id": "generate-tokens-chatcmpl-1", "choices": [choice], "usage": None}

    def full_call(self, position: int, state: Any) -> dict[str, Any]:
        """The call of a vLLM client."""
        return {
            "stream": True,
            "model": "qwen3",
            "generate_chunk": self.chunk(position),
            "stream_state": state,
            "prompt_token_ids": self.prompt,
            "chat_request": CHAT,
        }

    def context_call(self, position: int, state: Any, context: str) -> dict[str, Any]:
        return {
            "stream": True,
            "model": "qwen3",
            "generate_chunk": self.chunk(position),
            "stream_state": state,
            "context": context,
        }


def post(client: httpx.Client, body: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
    """The answer, bytes sent and bytes received."""
    data = json.dumps(body).encode()
    response = client.post(
        PATH, content=data, headers={"content-type": "application/json"}
    ).raise_for_status()
    answer: dict[str, Any] = response.json()
    return answer, len(data), len(response.content)


def windows(positions: list[int], width: int) -> list[range]:
    """Around each position: as wide as `width`, but no wider than the position itself."""
    return [range(p - min(width, p) // 2, p + min(width, p) - min(width, p) // 2) for p in positions]


def our_costs(server: ServerProcess, stream: Stream, spans: list[range], with_context: bool) -> list[Cost]:
    """Costs in each window. The first window is short, so it is measured over many streams."""
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
        stream.render(client)
        rounds = max(1, 200 // len(spans[0]))
        firsts = [_run(server, client, stream, spans[:1], with_context)[0] for _ in range(rounds)]
        first = Cost(
            cpu=sum(cost.cpu for cost in firsts) / rounds,
            wall=sum(cost.wall for cost in firsts) / rounds,
            sent=firsts[0].sent,
            received=firsts[0].received,
        )
        return [first, *_run(server, client, stream, spans[1:], with_context)]


def _run(
    server: ServerProcess, client: httpx.Client, stream: Stream, spans: list[range], with_context: bool
) -> list[Cost]:
    costs = []
    state: Any = None
    context: str | None = None
    position = 0
    for span in spans:
        sent = received = 0
        cpu = wall = 0.0
        while position < span.stop:
            if position == span.start:
                sent = received = 0
                cpu, wall = cpu_seconds(server.pid), time.perf_counter()
            if with_context and context is not None:
                body = stream.context_call(position, state, context)
            else:
                body = stream.full_call(position, state)
            answer, up, down = post(client, body)
            state, context = answer["stream_state"], answer.get("derender", {}).get("context")
            sent, received, position = sent + up, received + down, position + 1
        size = len(span)
        used, passed = cpu_seconds(server.pid) - cpu, time.perf_counter() - wall
        costs.append(Cost(used / size * 1e3, passed / size * 1e3, sent // size, received // size))
    return costs


def peer_costs(
    server: ServerProcess, stream: Stream, positions: list[int], samples: list[int]
) -> Iterator[Cost]:
    with httpx.Client(base_url=server.url, timeout=300, trust_env=False) as client:
        stream.render(client)
        post(client, stream.full_call(0, None))
        for position, count in zip(positions, samples, strict=True):
            state = {
                "role_sent": True,
                "tools_streamed": False,
                "output_token_ids": stream.output[:position],
                "output_chunk_lens": [1] * position,
                "last_tool_call_ids": [],
            }
            cpu, wall = cpu_seconds(server.pid), time.perf_counter()
            for _ in range(count):
                _, sent, received = post(client, stream.full_call(position, state))
            used, passed = cpu_seconds(server.pid) - cpu, time.perf_counter() - wall
            yield Cost(used / count * 1e3, passed / count * 1e3, sent, received)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", default="10,100,1000,10000")
    parser.add_argument(
        "--window", type=int, default=500, help="chunks around a position that are measured (ours)"
    )
    parser.add_argument(
        "--peer-positions", default="10,100,1000", help="positions sampled at vLLM; empty for none"
    )
    arguments = parser.parse_args()
    positions = [int(p) for p in arguments.positions.split(",")]
    peer_positions = [int(p) for p in arguments.peer_positions.split(",") if p]
    spans = windows(positions, arguments.window)
    stream = Stream(max(span.stop for span in spans) + 1)
    print(machine())
    with tempfile.TemporaryDirectory() as directory:
        logs = Path(directory)
        options = ("--served-model-name", "qwen3", *vllm.RENDER_OPTIONS)
        with render_tier_server(QWEN3, *options, log_dir=logs) as server:
            full = our_costs(server, stream, spans, with_context=False)
            short = our_costs(server, stream, spans, with_context=True)
        peer: dict[int, Cost] = {}
        if peer_positions:
            with vllm.render(QWEN3, "qwen3", log_dir=logs) as server:
                samples = [max(3, min(30, 10_000 // p)) for p in peer_positions]
                peer = dict(
                    zip(peer_positions, peer_costs(server, stream, peer_positions, samples), strict=True)
                )
    rows = []
    for position, whole, digest in zip(positions, full, short, strict=True):
        theirs = peer.get(position)
        rows.append(
            [
                f"{position:,}",
                f"{whole.cpu:.3f}",
                f"{digest.cpu:.3f}",
                f"{theirs.cpu:.2f}" if theirs else "-",
                ratio(theirs.cpu, whole.cpu) if theirs else "-",
                ratio(theirs.cpu, digest.cpu) if theirs else "-",
                f"{whole.sent:,} / {whole.received:,}",
                f"{digest.sent:,} / {digest.received:,}",
                f"{theirs.sent:,} / {theirs.received:,}" if theirs else "-",
            ]
        )
    header = [
        "chunk",
        "ours, CPU ms",
        "ours with digest, CPU ms",
        "vLLM, CPU ms",
        "ratio",
        "ratio with digest",
    ]
    header += ["ours, bytes up / down", "with digest", "vLLM"]
    print_table(f"One streaming derender call (prompt of {len(stream.prompt)} tokens)", header, rows)


if __name__ == "__main__":
    main()
