"""Build a whole engine from its options."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.embedded.engine import Engine, EngineSettings
from orchestrator.embedded.model_backend import ModelBackend
from orchestrator.embedded.requests import EngineLimits, Role
from orchestrator.embedded.script_backend import ScriptBackend
from orchestrator.embedded.surface import EngineSurface, SurfaceSettings
from orchestrator.embedded.transfer_protocol import Transfer
from orchestrator.embedded.transfer_server import TransferServerSettings
from orchestrator.embedded.weights import ModelError, read_json


@dataclass(frozen=True)
class EngineOptions:
    """Everything that can be chosen about one engine. ``blocks`` None: enough for every sequence at full
    length (memory is used only as blocks are). ``max_model_len`` None: the model's own. ``threads`` None: one
    for each core that the process may run on."""

    model: Path
    role: Role = "both"
    script: Path | None = None
    served_names: tuple[str, ...] = ()
    max_model_len: int | None = None
    blocks: int | None = None
    threads: int | None = None
    max_logprobs: int = 20
    engine: EngineSettings = field(default_factory=EngineSettings)
    transfer: TransferServerSettings = field(default_factory=TransferServerSettings)
    transfer_over: Transfer = "socket"
    advertised_host: str | None = None
    max_body_bytes: int = 16 << 20
    traces_endpoint: str | None = None


def available_cores() -> int:
    """Cores that the scheduler may run this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def build_surface(options: EngineOptions) -> EngineSurface:
    """Load the model or script. Raises ModelError, ScriptError or NixlError."""
    settings = options.engine
    own_length = read_json(options.model / "config.json").get("max_position_embeddings")
    if not isinstance(own_length, int):
        raise ModelError("config.json has no max_position_embeddings")
    length = options.max_model_len or own_length
    if length > own_length:
        raise ModelError(f"max_model_len {length} exceeds the model's {own_length} positions")
    blocks = options.blocks or settings.max_sequences * -(-length // settings.block_size)
    backend: ModelBackend | ScriptBackend
    if options.script is not None:
        backend = ScriptBackend(
            options.model,
            options.script,
            max_model_len=length,
            block_size=settings.block_size,
            blocks=blocks,
        )
    else:
        backend = ModelBackend(
            options.model,
            max_model_len=length,
            block_size=settings.block_size,
            blocks=blocks,
            threads=options.threads or available_cores(),
        )
    engine = Engine(backend, settings, blocks=blocks)
    limits = EngineLimits(
        served_names=options.served_names or (str(options.model),),
        role=options.role,
        vocab_size=backend.vocab_size,
        max_model_len=backend.max_model_len,
        max_sequences=settings.max_sequences,
        max_logprobs=options.max_logprobs,
        eos_token_ids=backend.eos_token_ids,
    )
    return EngineSurface(
        engine,
        limits,
        SurfaceSettings(
            root=str(options.model),
            transfer=options.transfer,
            transfer_over=options.transfer_over,
            advertised_host=options.advertised_host,
            max_body_bytes=options.max_body_bytes,
            traces_endpoint=options.traces_endpoint,
        ),
    )
