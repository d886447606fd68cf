"""The two kinds of engine that the demo can start, and where each says how much KV it pulled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.demo import vllm_cpu
from orchestrator.demo.processes import free_port

BIN = Path(sys.executable).parent
"""Where the project's console scripts are: beside the interpreter that runs the demo."""

BLAS_THREADS = {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
"""The engines take turns: prefill computes while decode waits, so each may use two cores."""


@dataclass(frozen=True)
class Engines:
    """Both engines of a stack. ``command(role)`` and ``environment(role)`` start one, role "prefill" or
    "decode"; host and port are added. ``kv_bytes`` and ``kv_seconds`` are totals on a decode engine's
    ``/metrics``."""

    command: Callable[[str], list[str]]
    environment: Callable[[str], Mapping[str, str]]
    kv_bytes: str
    kv_seconds: str


def embedded(model: Path, served: str, *flags: str) -> Engines:
    """This project's own engine."""
    program = [str(BIN / "pd-orchestrator"), "engine", "--model", str(model)]
    return Engines(
        command=lambda role: [*program, "--role", role, "--served-model-name", served, *flags],
        environment=lambda role: BLAS_THREADS,
        kv_bytes="embedded:kv_bytes_received_total",
        kv_seconds="embedded:kv_pull_seconds_total",
    )


def vllm(environment: Path, model: Path, served: str, scratch: Path) -> Engines:
    """vLLM on the CPU, from the environment of ``scripts/vllm_env.sh``, with NIXL between the two."""
    return Engines(
        command=lambda role: [
            *(str(environment / "bin" / "vllm"), "serve", str(model), "--served-model-name", served),
            *vllm_cpu.PAIR_OPTIONS,
            *("--kv-transfer-config", vllm_cpu.transfer_config(role)),
        ],
        environment=lambda role: (
            vllm_cpu.variables(environment, scratch / role) | vllm_cpu.side_channel(free_port())
        ),
        kv_bytes="vllm:nixl_bytes_transferred_sum",
        kv_seconds="vllm:nixl_xfer_time_seconds_sum",
    )
