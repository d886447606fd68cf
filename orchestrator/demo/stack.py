"""The processes of one demo stack: render tier, prefill engine, decode engine, orchestrator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.demo.engines import BIN, BLAS_THREADS, Engines
from orchestrator.demo.processes import Child, free_port


@dataclass(frozen=True)
class Stack:
    """The four processes of one model. ``served`` is the model's name in requests."""

    served: str
    engines: Engines
    render: Child
    prefill: Child
    decode: Child
    orchestrator: Child

    @property
    def children(self) -> tuple[Child, ...]:
        return (self.render, self.prefill, self.decode, self.orchestrator)


def build_stack(
    served: str,
    model: Path,
    engines: Engines,
    logs: Path,
    *,
    render_flags: Sequence[str] = (),
    port: int = 0,
) -> Stack:
    """Commands for one stack, not started. ``port`` is the orchestrator's (0: any free one)."""

    def child(
        name: str,
        command: Sequence[str],
        ready_path: str = "/ready",
        at: int = 0,
        env: Mapping[str, str] = BLAS_THREADS,
    ) -> Child:
        at = at or free_port()
        argv = [*command, "--host", "127.0.0.1", "--port", str(at)]
        return Child(f"{served} {name}", argv, at, logs / f"{served}-{name}.log", ready_path, dict(env))

    def engine(role: str) -> Child:
        return child(role, engines.command(role), "/health", env=engines.environment(role))

    serve = [str(BIN / "render-tier"), "serve", str(model), "--served-model-name", served, *render_flags]
    render, prefill, decode = child("render tier", serve), engine("prefill"), engine("decode")
    urls = ["--render", render.url, "--prefill", prefill.url, "--decode", decode.url]
    front = child("orchestrator", [str(BIN / "pd-orchestrator"), "serve", *urls], at=port)
    return Stack(served, engines, render, prefill, decode, front)
