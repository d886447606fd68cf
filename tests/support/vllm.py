"""Servers of a real vLLM, run from the environment that `scripts/vllm_env.sh` makes and `VLLM_ENV` names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.demo import vllm_cpu
from tests.support.processes import ServerFailed, ServerProcess, free_port

READY_WITHIN = 240.0
"""Seconds. A start takes about 30 on an idle machine of two cores, several times that on a busy one."""

SYSTEM_START_DATE = "2025-08-05"
"""The date that gpt-oss is told, so that its prompts are the same every day."""

ENGINE_OPTIONS = (*vllm_cpu.PAIR_OPTIONS, "--max-model-len", "4096", "--kv-cache-memory-bytes", "1073741824")
"""Those of a pair with more room: the later of two equal flags counts."""

RENDER_OPTIONS = ("--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--enable-auto-tool-choice")
"""Flags that `vllm launch render` and `render-tier serve` share, for the Qwen3 tokenizer."""

TRACING = {
    "OTEL_BSP_SCHEDULE_DELAY": "100",
    # Nothing is sent, and no receiver missed, but for requests whose callers record.
    "OTEL_TRACES_SAMPLER": "parentbased_always_off",
}
"""Variables of a server that is started with the flags of `traced`."""

ENGINE_TRACING = TRACING | {
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    "OTEL_SERVICE_NAME": "vllm",
}


DEVELOPMENT = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
"""Variables of an engine that can be paused, with the flags of `DEVELOPMENT_OPTIONS`."""
DEVELOPMENT_OPTIONS = ("--middleware", "tests.support.vllm_development.NoServerInfo")


def traced(port: int) -> tuple[str, str]:
    """Flags, also of a render tier, for spans to be sent to a receiver on this port."""
    return "--otlp-traces-endpoint", f"http://127.0.0.1:{port}/v1/traces"


def publishing(events: int, replay: int) -> tuple[str, ...]:
    """Flags of an engine that publishes its cache's events on one port, replays them on another one, and says
    how many tokens of a prompt were cached."""
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
    }
    return "--kv-events-config", json.dumps(config), "--enable-prompt-tokens-details"


def environment() -> Path:
    """The vLLM environment's directory. Raises `RuntimeError` that says what to do when there is none."""
    value = os.environ.get("VLLM_ENV")
    if not value or not (Path(value) / "bin" / "vllm").exists():
        raise RuntimeError(f"VLLM_ENV={value or ''} is not a vLLM environment: run `make test-vllm`")
    return Path(value)


def process_environment(scratch: Path, threads: int = 2) -> dict[str, str]:
    """Variables for vLLM's processes: so many threads, no network, files under `scratch`."""
    return vllm_cpu.variables(environment(), scratch, threads) | {"VLLM_SYSTEM_START_DATE": SYSTEM_START_DATE}


def server(name: str, *words: str | Path, log_dir: Path, threads: int = 2) -> ServerProcess:
    """`vllm WORDS...` on a free port of loopback (not started yet)."""
    program = environment() / "bin" / "vllm"
    return ServerProcess(
        name,
        lambda port: [program, *words, "--host", "127.0.0.1", "--port", str(port)],
        log_dir=log_dir,
        ready_path="/health",
        ready_within=READY_WITHIN,
        env=process_environment(log_dir / "scratch", threads),
    )


def engine(model: Path, name: str, *options: str, log_dir: Path, threads: int = 2) -> ServerProcess:
    """`vllm serve MODEL --tokens-only`, colocated, in float32."""
    return server(
        "vllm-engine",
        *("serve", model, "--served-model-name", name),
        *ENGINE_OPTIONS,
        *options,
        log_dir=log_dir,
        threads=threads,
    )


def pair_engine(
    model: Path, name: str, role: str, *options: str, log_dir: Path, **transfer: object
) -> ServerProcess:
    """One side of a pair over NIXL, `role` "prefill" or "decode"; blocks are moved between CPU memories.
    `transfer` are further members of `--kv-transfer-config`."""
    process = server(
        f"vllm-{role}",
        *("serve", model, "--served-model-name", name),
        *vllm_cpu.PAIR_OPTIONS,
        *("--kv-transfer-config", vllm_cpu.transfer_config(role, **transfer)),
        *options,
        log_dir=log_dir,
    )
    process.env |= vllm_cpu.side_channel(free_port())
    return process


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode engine that know nothing of each other until a request names one to the other.
    Engine ids are random, so that a restarted engine is a new one to its peer."""

    prefill: ServerProcess
    decode: ServerProcess


@contextmanager
def nixl_pair(model: Path, name: str, log_dir: Path, **transfer: object) -> Iterator[Pair]:
    """Both engines, started side by side. The decode engine keeps no prefix cache: what it did not get over
    NIXL it computes. `transfer` as for `pair_engine`."""
    pair = Pair(
        pair_engine(model, name, "prefill", log_dir=log_dir, **transfer),
        pair_engine(model, name, "decode", "--no-enable-prefix-caching", log_dir=log_dir, **transfer),
    )
    try:
        with ThreadPoolExecutor(2) as starts:
            list(starts.map(start, (pair.prefill, pair.decode)))
        yield pair
    finally:
        pair.prefill.stop()
        pair.decode.stop()


def generative(model: Path, into: Path) -> Path:
    """`model` as a directory that vLLM takes for a generating model. The render tier needs no architecture,
    but vLLM takes a model without one for an embedding model, which among other things cuts prompts at the
    other end."""
    into.mkdir(parents=True, exist_ok=True)
    for file in model.iterdir():
        if not (into / file.name).exists():
            (into / file.name).symlink_to(file.resolve())
    config = json.loads((model / "config.json").read_text())
    (into / "config.json").unlink()
    (into / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]} | config))
    return into


def render(model: Path, name: str, *options: str, log_dir: Path) -> ServerProcess:
    """`vllm launch render MODEL` with the shared flags; `model` is a Qwen3 directory without weights."""
    return server(
        "vllm-render",
        *("launch", "render", generative(model, log_dir / "model"), "--served-model-name", name),
        *RENDER_OPTIONS,
        *options,
        log_dir=log_dir,
    )


def start(process: ServerProcess) -> ServerProcess:
    """Start it; once more if it hangs, which a vLLM on a loaded machine does now and then."""
    try:
        return process.start()
    except ServerFailed:
        return process.start()


def restart(process: ServerProcess) -> None:
    """End it at once, if it still runs, and start it anew at its address."""
    port = process.port
    process.kill()
    try:
        process.start(port)
    except ServerFailed:
        process.start(port)


def coupled(model: Path, name: str, log_dir: Path) -> ServerProcess:
    """`vllm serve MODEL`: one engine behind the OpenAI API, with its own tokenizer, in float32."""
    options = [option for option in vllm_cpu.PAIR_OPTIONS if option != "--tokens-only"]
    process = server(
        "vllm-coupled", *("serve", model, "--served-model-name", name), *options, log_dir=log_dir
    )
    process.env |= vllm_cpu.side_channel(free_port())
    return process
