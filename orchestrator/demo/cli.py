"""`pd-orchestrator demo`: the command line; what it does is in `orchestrator.demo.run`."""

from __future__ import annotations

import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

MODELS = Path(".cache/models")


class EngineKind(StrEnum):
    embedded = "embedded"
    vllm = "vllm"


READY_WITHIN = {EngineKind.embedded: 120.0, EngineKind.vllm: 300.0}
"""Seconds; a vLLM engine starts in about 30 on an idle machine of two cores."""


def demo(
    model: Annotated[Path, typer.Option(help="Model directory of the real chat.")] = MODELS / "smollm2",
    scripted_model: Annotated[
        Path, typer.Option(help="Directory with the Qwen3 tokenizer, for the scripted answer.")
    ] = MODELS / "qwen3",
    prompt: Annotated[str, typer.Option(help="What to ask the small model.")] = (
        "Explain in three sentences why the sea is salty."
    ),
    max_tokens: Annotated[int, typer.Option(min=2, max=1024, help="Tokens the small model may write.")] = 96,
    port: Annotated[int, typer.Option(help="Port of the orchestrator (0: any free one).")] = 0,
    engine: Annotated[
        EngineKind, typer.Option(help="What runs the small model: the embedded engine, or a real vLLM pair.")
    ] = EngineKind.embedded,
    vllm_env: Annotated[
        Path | None,
        typer.Option(envvar="VLLM_ENV", help="Environment of vLLM; scripts/vllm_env.sh makes one."),
    ] = None,
    ready_timeout: Annotated[
        float | None, typer.Option(help="Seconds to wait for the processes (120; 300 with vLLM).")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running until Ctrl-C.")] = False,
) -> None:
    """Run all four hops on this machine and show what happened."""
    if engine is EngineKind.vllm and (vllm_env is None or not (vllm_env / "bin" / "vllm").is_file()):
        where = "no environment of vLLM is named" if vllm_env is None else f"{vllm_env} has no bin/vllm"
        typer.echo(f"{where}: say `make demo ENGINE=vllm`, which makes one", err=True)
        raise typer.Exit(2)
    # Every polite way to end the demo is a KeyboardInterrupt, which passes through its `with` blocks. INT is
    # set too, because a shell starts background jobs with it ignored.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        from orchestrator.demo.run import Options, run

        options = Options(
            model,
            scripted_model,
            prompt,
            max_tokens,
            port,
            ready_timeout or READY_WITHIN[engine],
            keep,
            vllm_env if engine is EngineKind.vllm else None,
        )
        code = run(options)
    except ModuleNotFoundError as missing:
        typer.echo(f"the demo needs {missing.name}: pip install 'disagg-frontend[demo]'", err=True)
        code = 2
    except KeyboardInterrupt:
        typer.echo("\nall processes ended")
        code = 130
    raise typer.Exit(code)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
