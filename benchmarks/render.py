"""Render: requests a second, and CPU time a request, beside `vllm-rs render` and `vllm launch render`.

All serve the Qwen3 tokenizer and get the same requests: chats of three lengths that no server has seen
("cold"), and an agent conversation with tools that grows by one round a request. vLLM's Python server gets a
sample of them, since it takes tens of times as long; ours runs once more with as many workers as there are
cores. Trust CPU times more than rates on a machine that is shared. The last table says where a request's CPU
time goes in ours: what HTTP takes by itself, what each step takes when nothing stands between the requests,
and what is more than their sum in the server (threads, and caches that are cold after a pause).

`vllm-rs` is the binary in the PyPI wheel `vllm`; it is fetched once (336 MB, of which 61 are kept).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import msgspec

from benchmarks.bare_http import REPLY_BYTES, bare_server
from benchmarks.measure import cpu_seconds, machine, median, memory, peak_resident, print_table, ratio
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.validation import decode_object
from render_tier.rendering.encoder import PromptEncoder
from render_tier.rendering.template import ChatTemplate
from render_tier.server.service import Service
from render_tier.settings import Settings
from tests.support import vllm
from tests.support.processes import ServerProcess, render_tier_server

QWEN3 = Path(__file__).resolve().parent.parent / ".cache" / "models" / "qwen3"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "disagg-frontend"
VLLM_RS = CACHE / "vllm-rs-0.33.0" / "vllm-rs"
PATH = "/v1/chat/completions/render"
OURS = "render-tier"
CHARS_PER_TOKEN = 3.6
LENGTHS = {"0.5k": 500, "9k": 9_000, "72k": 72_000}
CONTEXT = 131_072


def fetch_vllm_rs() -> Path:
    """The binary of upstream's Rust frontend; downloaded when it is not in the cache."""
    if not VLLM_RS.exists():
        with tempfile.TemporaryDirectory() as directory:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
            subprocess.run([*pip, "--dest", directory, "vllm==0.33.0"], check=True)
            with zipfile.ZipFile(next(Path(directory).glob("vllm-*.whl"))) as wheel:
                VLLM_RS.parent.mkdir(parents=True, exist_ok=True)
                VLLM_RS.write_bytes(wheel.read("vllm/vllm-rs"))
        VLLM_RS.chmod(0o755)
    return VLLM_RS


class Text:
    """Prose and code without end: the standard library's sources, each stretch handed out once."""

    def __init__(self) -> None:
        library = Path(os.__file__).parent
        sources = [*sorted(library.glob("*.py")), *sorted(library.glob("*/*.py"))]
        # Tables of character sets take twice as many tokens as other text.
        texts = (path.read_text(errors="replace") for path in sources if path.parent.name != "encodings")
        self._text = "".join(islice(texts, 600))
        self._at = self._rounds = 0

    def take(self, tokens: int) -> str:
        size = int(tokens * CHARS_PER_TOKEN)
        if self._at + size > len(self._text):
            self._rounds += 1
            self._at = self._rounds * 1009  # other stretches than in the round before
        self._at += size
        return self._text[self._at - size : self._at]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Tool to {name.replace('_', ' ')} in the working tree.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
    for name in ("read_file", "write_file", "run_tests", "search_code")
]


def cold(text: Text, tokens: int, count: int) -> list[bytes]:
    """Chats of a system prompt and three messages, no two alike."""
    quarter = tokens // 4
    roles = ("system", "user", "assistant", "user")
    return [
        _body([{"role": role, "content": text.take(quarter)} for role in roles], tools=None)
        for _ in range(count)
    ]


def conversation(text: Text, turns: int, tokens_a_turn: int) -> list[bytes]:
    """An agent's requests: each repeats the last and adds a call and its result."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text.take(2_000)},
        {"role": "user", "content": "Find the bug."},
    ]
    bodies = []
    for turn in range(turns):
        bodies.append(_body(messages, TOOLS))
        arguments = json.dumps({"path": f"module_{turn}.py", "lines": 200})
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "read_file", "arguments": arguments},
        }
        messages.append({"role": "assistant", "content": text.take(60), "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": text.take(tokens_a_turn)})
    return bodies


def _body(messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None) -> bytes:
    body: dict[str, Any] = {"model": "qwen3", "messages": list(messages), "max_tokens": 64}
    if tools is not None:
        body["tools"] = tools
    return json.dumps(body).encode()


@dataclass(frozen=True)
class Result:
    """``ids`` and ``reply_bytes``: of each request by its place in the scenario, which a sample may leave
    gaps in."""

    requests: int
    seconds: float
    cpu: float
    ids: dict[int, tuple[int, ...]]
    reply_bytes: dict[int, int]

    @property
    def cpu_ms(self) -> float:
        """A request."""
        return self.cpu / self.requests * 1e3


def exchange(
    server: ServerProcess, requests: Sequence[tuple[bytes, dict[str, str]]], concurrency: int
) -> tuple[list[bytes], float, float]:
    """Send bodies with these headers. Replies, seconds, and CPU seconds of the server."""
    limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    with httpx.Client(base_url=server.url, timeout=300, limits=limits, trust_env=False) as client:

        def send(request: tuple[bytes, dict[str, str]]) -> bytes:
            body, more = request
            headers = {"content-type": "application/json", **more}
            return client.post(PATH, content=body, headers=headers).raise_for_status().content

        before, start = cpu_seconds(server.pid), time.perf_counter()
        with ThreadPoolExecutor(concurrency) as pool:
            replies = list(pool.map(send, requests))
        return replies, time.perf_counter() - start, cpu_seconds(server.pid) - before


def run(server: ServerProcess, bodies: Sequence[bytes], concurrency: int, most: int | None = None) -> Result:
    """Send them all, or about ``most`` of them; with one at a time they arrive in their order."""
    step = 1 if most is None else max(len(bodies) // most, 1)
    sent = dict(list(enumerate(bodies))[::step])
    replies, seconds, cpu = exchange(server, [(body, {}) for body in sent.values()], concurrency)
    ids = [tuple(msgspec.json.decode(reply)["token_ids"]) for reply in replies]
    sizes = dict(zip(sent, map(len, replies), strict=True))
    return Result(len(sent), seconds, cpu, dict(zip(sent, ids, strict=True)), sizes)


@dataclass(frozen=True)
class Scenario:
    """``sample``: requests for a server that takes tens of times as long."""

    name: str
    bodies: Sequence[bytes]
    concurrency: int
    sample: int


def scenarios(quick: bool) -> Iterator[Scenario]:
    text = Text()
    counts = {"0.5k": 60, "9k": 20, "72k": 4} if quick else {"0.5k": 300, "9k": 80, "72k": 10}
    for name, tokens in LENGTHS.items():
        for concurrency in (1, 8):
            bodies = cold(text, tokens, counts[name])
            sample = {"0.5k": 40, "9k": 16, "72k": 4}[name]
            yield Scenario(f"{name} cold, {concurrency} at a time", bodies, concurrency, sample)
    others = [conversation(text, 1, 0)[0] for _ in range(9)]
    bodies = conversation(text, 20, 2_000 if quick else 4_800)
    yield Scenario("conversation, turn 1", [*others, bodies[0]], 1, 5)
    yield Scenario("conversation, turns 2 to 20", bodies[1:], 1, 6)


def long_context(into: Path) -> Path:
    """Qwen3's tokenizer in a model directory whose context holds the longest prompts."""
    into.mkdir()
    for file in QWEN3.iterdir():
        if file.name != "config.json":
            (into / file.name).symlink_to(file.resolve())
    config = json.loads((QWEN3 / "config.json").read_text()) | {"max_position_embeddings": CONTEXT}
    (into / "config.json").write_text(json.dumps(config))
    return into


@dataclass(frozen=True)
class Contestant:
    name: str
    make: Callable[[], ServerProcess]
    sampled: bool = False
    """Gets a sample of each scenario's requests."""
    workers: int = 1

    def takes(self, scenario: Scenario) -> bool:
        """Workers make no difference to one request at a time."""
        return self.workers == 1 or scenario.concurrency > 1


def contestants(arguments: argparse.Namespace, model: Path, logs: Path) -> Iterator[Contestant]:
    common = ["--served-model-name", "qwen3", "--max-model-len", str(CONTEXT)]

    def ours(*options: str) -> ServerProcess:
        return render_tier_server(model, *common, *vllm.RENDER_OPTIONS, *options, log_dir=logs)

    yield Contestant(OURS, ours)
    cores = os.cpu_count() or 1
    yield Contestant(f"{OURS}, {cores} workers", partial(ours, "--workers", str(cores)), workers=cores)
    if not arguments.no_rs:
        binary = fetch_vllm_rs()
        flags = [*common, "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes"]

        def rust() -> ServerProcess:
            return ServerProcess(
                "vllm-rs",
                lambda port: [binary, "render", model, *flags, "--port", str(port)],
                log_dir=logs,
                ready_path="/health",
                ready_within=120,
                env={"PATH": os.environ.get("PATH", ""), "HF_HUB_OFFLINE": "1"},
            )

        yield Contestant("vllm-rs render", rust)
    if not arguments.no_vllm and os.environ.get("VLLM_ENV"):
        yield Contestant(
            "vllm launch render", lambda: vllm.render(model, "qwen3", log_dir=logs), sampled=True
        )


def footprint(pid: int) -> list[str]:
    held = memory(pid)
    each = (held.resident / held.processes, held.unique / held.processes, peak_resident(pid))
    return [str(held.processes), *(f"{value:.0f}" for value in each)]


def await_fast_engine(server: ServerProcess) -> None:
    """Ours serves before its fast tokenizer is loaded; what is measured is the state after."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=10) as client:
        while 'tokenizer_engine{engine="' not in client.get("/metrics").text:
            time.sleep(0.1)


def load(model: Path) -> Service:
    """Ours without a server, with the fast engine in use."""
    settings = Settings(
        model=str(model),
        served_model_name=("qwen3",),
        reasoning_parser="qwen3",
        tool_call_parser="hermes",
        enable_auto_tool_choice=True,
    )
    service = Service.load(settings)
    service.adopt_fast_engine()
    service.warm_up()
    return service


def stages(service: Service, bodies: Sequence[bytes]) -> dict[str, float]:
    """Median CPU milliseconds of each step of a request, in this process, without HTTP."""
    spent: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        spent.setdefault(name, []).append((time.process_time() - start) * 1e3)
        return result

    def wrapped(owner: Any, method: str, name: str) -> Any:
        original = getattr(owner, method)
        return mock.patch.object(
            owner, method, lambda *args, **options: timed(name, partial(original, *args, **options))
        )

    with (
        wrapped(ChatTemplate, "render", "template"),
        wrapped(PromptEncoder, "text", "split, encode, join"),
    ):
        for body in bodies:
            fields = timed("JSON in", partial(decode_object, body))
            request = timed("validation", partial(ChatCompletionRequest.parse, fields))
            rendered = timed("render in all", partial(service.renderer.render_chat, request))
            timed("JSON out", rendered.encode)
    result = {name: median(values) for name, values in spent.items()}
    result["rest of render"] = result["render in all"] - result["template"] - result["split, encode, join"]
    del result["render in all"]
    return result


def warm_up(server: ServerProcess) -> None:
    """Every process and thread of the server pays for its first requests, of short and of longer prompts."""
    run(server, cold(Text(), 300, 5), 1)
    run(server, cold(Text(), 9_000, 32), 8)


def http_alone(server: ServerProcess, bodies: Sequence[bytes], reply_bytes: dict[int, int]) -> float:
    """CPU milliseconds a request of a server that does nothing with it."""
    sized = [(body, {REPLY_BYTES: str(reply_bytes[place])}) for place, body in enumerate(bodies)]
    return exchange(server, sized, 1)[2] / len(bodies) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few requests")
    parser.add_argument("--no-rs", action="store_true", help="leave upstream's Rust renderer out")
    parser.add_argument("--no-vllm", action="store_true", help="leave vLLM's Python renderer out")
    arguments = parser.parse_args()
    print(machine())
    todo = list(scenarios(arguments.quick))
    results: dict[str, dict[str, Result]] = {}
    footprints: list[list[str]] = []
    with tempfile.TemporaryDirectory() as directory:
        model = long_context(Path(directory) / "qwen3")
        for each in contestants(arguments, model, Path(directory)):
            with each.make() as server:
                if each.name.startswith(OURS):
                    await_fast_engine(server)
                warm_up(server)
                results[each.name] = {
                    one.name: run(server, one.bodies, one.concurrency, one.sample if each.sampled else None)
                    for one in todo
                    if each.takes(one)
                }
                footprints.append([each.name, *footprint(server.pid)])
        alone = [one for one in todo if one.concurrency == 1 and len(one.bodies) > 1]
        with bare_server(Path(directory)) as bare:
            exchange(bare, [(b" ", {})] * 5, 1)
            http = {
                one.name: http_alone(bare, one.bodies, results[OURS][one.name].reply_bytes) for one in alone
            }
        service = load(model)
        tables = {one.name: stages(service, one.bodies) for one in alone}
    rows = []
    for scenario in todo:
        base = results[OURS][scenario.name]
        tokens = sum(map(len, base.ids.values())) // len(base.ids)
        for name, by_scenario in results.items():
            found = by_scenario.get(scenario.name)
            if found is None:
                continue
            same = all(ids == base.ids[place] for place, ids in found.ids.items())
            rows.append(
                [
                    scenario.name,
                    str(tokens),
                    name,
                    f"{found.requests / found.seconds:.1f}",
                    f"{found.cpu_ms:.2f}",
                    ratio(found.cpu_ms, base.cpu_ms),
                    "equal" if same else "DIFFERENT",
                ]
            )
    header = ["requests", "tokens (mean)", "server", "req/s", "CPU ms a request", "ratio", "IDs"]
    print_table("Render of chats", header, rows)
    header = ["server", "processes", "resident MB a process", "unique MB a process", "peak MB of a process"]
    print_table("Memory afterwards", header, footprints)
    for name, spent in tables.items():
        spent["HTTP"] = http[name]
        measured = results[OURS][name].cpu_ms
        spent["more in the server"] = measured - sum(spent.values())
        spent["all"] = measured
    steps = list(next(iter(tables.values())))
    print_table(
        "Where the CPU time of a request goes in ours, ms",
        ["requests", *steps],
        [[name, *(f"{spent[step]:.2f}" for step in steps)] for name, spent in tables.items()],
    )
    print(f"\n{machine()}")


if __name__ == "__main__":
    main()
