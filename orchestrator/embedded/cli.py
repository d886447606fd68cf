"""``pd-orchestrator engine``: serve the embedded engine."""

from __future__ import annotations

import contextlib
import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

REQUIRED = ("numpy", "threadpoolctl")
"""Packages that only the engine needs; they come with an extra."""


class EngineRole(StrEnum):
    prefill = "prefill"
    decode = "decode"
    both = "both"


class TransferKind(StrEnum):
    socket = "socket"
    nixl = "nixl"


class LogLevel(StrEnum):
    critical = "critical"
    error = "error"
    warning = "warning"
    info = "info"
    debug = "debug"


class LogFormat(StrEnum):
    json = "json"
    console = "console"


def engine(
    model: Annotated[
        Path, typer.Option(help="Model directory (Llama, float32), or config only with --script.")
    ],
    role: Annotated[EngineRole, typer.Option(help="Which KV hand-overs to accept.")] = EngineRole.both,
    host: Annotated[str, typer.Option(help="HTTP address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="HTTP port; 0: any free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name to serve the model under; repeatable.")
    ] = None,
    max_model_len: Annotated[int | None, typer.Option(min=2, help="Context length.")] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Sequences that run at a time.")] = 8,
    max_waiting: Annotated[int, typer.Option(min=0, help="Requests in the queue before 503.")] = 256,
    kv_blocks: Annotated[int | None, typer.Option(min=1, help="KV blocks; default: enough for all.")] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens per KV block.")] = 16,
    prefill_chunk: Annotated[int, typer.Option(min=1, help="Prompt tokens computed per step.")] = 512,
    lease_seconds: Annotated[
        float, typer.Option(min=0.05, help="How long prefilled KV is kept without a heartbeat.")
    ] = 30.0,
    transfer: Annotated[
        TransferKind,
        typer.Option(help="How KV is pulled: over a socket, or NIXL where installed."),
    ] = TransferKind.socket,
    transfer_host: Annotated[str, typer.Option(help="Address of the KV transfer port.")] = "127.0.0.1",
    transfer_port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 0,
    transfer_advertise_host: Annotated[
        str | None, typer.Option(help="Host decode engines are told to connect to; default: --transfer-host.")
    ] = None,
    transfer_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one prompt's KV.")] = 30.0,
    script: Annotated[Path | None, typer.Option(help="Play this script instead of computing.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that compute; default: one for each available core.")
    ] = None,
    max_logprobs: Annotated[int, typer.Option(min=0, help="Bound of logprobs and prompt_logprobs.")] = 20,
    max_body_bytes: Annotated[int, typer.Option(min=1024, help="Bound of a request body.")] = 16 << 20,
    otlp_traces_endpoint: Annotated[
        str | None,
        typer.Option(help="Send a span for each request there, over OTLP/HTTP. Needs the extra otel."),
    ] = None,
    shutdown_seconds: Annotated[
        int, typer.Option(min=0, help="How long running requests may finish after SIGTERM.")
    ] = 2,
    log_level: Annotated[LogLevel, typer.Option(help="Least severe lines to log.")] = LogLevel.info,
    log_format: Annotated[LogFormat, typer.Option(help="Form of log lines.")] = LogFormat.json,
) -> None:
    """Serve a tokens-only engine on the CPU: a real small model, or a script."""
    for name in REQUIRED:
        if importlib.util.find_spec(name) is None:
            typer.echo(f"error: the engine needs {name}: pip install 'disagg-frontend[demo]'", err=True)
            raise typer.Exit(1)

    from orchestrator.embedded.assembly import EngineOptions, build_surface
    from orchestrator.embedded.engine import EngineSettings
    from orchestrator.embedded.nixl_memory import NixlError
    from orchestrator.embedded.script_backend import ScriptError
    from orchestrator.embedded.serving import EngineServer
    from orchestrator.embedded.transfer_server import TransferServerSettings
    from orchestrator.embedded.transfer_wire import WireLimits
    from orchestrator.embedded.weights import ModelError
    from orchestrator.logs import configure_logging

    configure_logging(log_level.value, log_format.value)

    if otlp_traces_endpoint is not None:
        try:
            import orchestrator.embedded.traces  # noqa: F401
        except ModuleNotFoundError:
            typer.echo("error: --otlp-traces-endpoint needs the extra otel", err=True)
            raise typer.Exit(1) from None
    options = EngineOptions(
        model=model,
        role=role.value,
        script=script,
        served_names=tuple(served_model_name or ()),
        max_model_len=max_model_len,
        blocks=kv_blocks,
        threads=threads,
        max_logprobs=max_logprobs,
        engine=EngineSettings(
            max_sequences=max_num_seqs,
            max_waiting=max_waiting,
            prefill_chunk=prefill_chunk,
            block_size=block_size,
            lease_seconds=lease_seconds,
        ),
        transfer=TransferServerSettings(
            host=transfer_host, port=transfer_port, limits=WireLimits(transfer_seconds=transfer_timeout)
        ),
        transfer_over=transfer.value,
        advertised_host=transfer_advertise_host,
        max_body_bytes=max_body_bytes,
        traces_endpoint=otlp_traces_endpoint,
    )
    try:
        surface = build_surface(options)
    except (ModelError, ScriptError, NixlError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    server = EngineServer(surface, host=host, port=port, log_level=log_level.value, grace=shutdown_seconds)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    if not server.started:
        raise typer.Exit(3)
