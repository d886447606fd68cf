"""``pd-orchestrator plan``: how many engines, how much fabric and how many render cores a workload needs."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from orchestrator.core.capacity import Aims, Limits, Plan, Planner, Rates, Unreachable, mean
from orchestrator.core.kv_size import KvSize, UnknownShape, kv_size
from orchestrator.core.workload import Asked, Lengths, Workload, drawn, recorded

Positive = Annotated[int, msgspec.Meta(ge=1)]


class TraceLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prompt: Positive
    output: Positive
    cached: Annotated[int, msgspec.Meta(ge=0)] = 0
    at: float | None = None

    def asked(self) -> Asked:
        return Asked(self.prompt, self.output, self.cached, self.at)


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedTokens | None = None


class LogLine(msgspec.Struct, frozen=True):
    """Of the orchestrator's own log; requests that have no answer say nothing about load."""

    event: str
    timestamp: datetime
    usage: Usage | None = None

    def asked(self) -> Asked | None:
        usage = self.usage
        if self.event != "request" or usage is None or not (usage.prompt_tokens and usage.completion_tokens):
            return None
        details = usage.prompt_tokens_details
        cached = (details.cached_tokens or 0) if details else 0
        return Asked(usage.prompt_tokens, usage.completion_tokens, cached, self.timestamp.timestamp())


def plan(
    config: Annotated[Path, typer.Option(help="The model's config.json.")],
    prefill_rate: Annotated[float, typer.Option(min=1, help="Prompt tokens a second of a prefill engine.")],
    step_ms: Annotated[float, typer.Option(min=0, help="A decode step without anything in it.")],
    sequence_ms: Annotated[float, typer.Option(min=0, help="What each sequence adds to a step.")] = 0.0,
    context_ms: Annotated[
        float, typer.Option(min=0, help="What each 1000 tokens of context, of all sequences, add to a step.")
    ] = 0.0,
    prefill_ms: Annotated[float, typer.Option(min=0, help="What each prompt adds to its prefill.")] = 0.0,
    render_ms: Annotated[float, typer.Option(min=0, help="CPU of a render, whatever its length.")] = 0.5,
    render_us: Annotated[float, typer.Option(min=0, help="CPU of a render for each prompt token.")] = 0.3,
    derender_us: Annotated[float, typer.Option(min=0, help="CPU of derender for each output token.")] = 70.0,
    trace: Annotated[
        Path | None,
        typer.Option(
            help='JSON lines: {"prompt": 1500, "output": 200, "cached": 800, "at": 3.2}; or the log.'
        ),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=1e-9, help="Requests a second; a trace's own by default.")
    ] = None,
    prompt: Annotated[float, typer.Option(min=1, help="Without a trace: mean tokens of prompts.")] = 2000,
    prompt_spread: Annotated[
        float, typer.Option(min=0, max=4, help="Standard deviation of their logarithm.")
    ] = 0.8,
    output: Annotated[float, typer.Option(min=1, help="Without a trace: mean tokens of answers.")] = 300,
    output_spread: Annotated[
        float, typer.Option(min=0, max=4, help="Standard deviation of their logarithm.")
    ] = 0.6,
    cached: Annotated[
        float, typer.Option(min=0, max=1, help="Without a trace: share of prompts found in a cache.")
    ] = 0.0,
    ttft_ms: Annotated[float, typer.Option(min=1, help="Time to the first token to keep.")] = 1000,
    itl_ms: Annotated[float, typer.Option(min=0.1, help="Time between tokens to keep.")] = 50,
    share: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Of requests and tokens that keep it.")
    ] = 0.99,
    utilisation: Annotated[
        float, typer.Option(min=0.05, max=0.99, help="Of prefill engines and render cores, at most.")
    ] = 0.8,
    transfer_ms: Annotated[float, typer.Option(min=0.1, help="What the KV of a long prompt may take.")] = 50,
    max_sequences: Annotated[int, typer.Option(min=1, help="On a decode engine.")] = 256,
    kv_gib: Annotated[float | None, typer.Option(min=0.001, help="Memory for KV of a decode engine.")] = None,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Number type of the KV cache; the model's own.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as one JSON object.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report with plots there.")] = None,
) -> None:
    """Plan a fleet from a workload and measured rates. docs/planning.md has the formulas and their limits."""
    rates = Rates(
        prefill_tokens=prefill_rate,
        step=step_ms / 1e3,
        step_per_sequence=sequence_ms / 1e3,
        step_per_context_token=context_ms / 1e6,
        prefill_overhead=prefill_ms / 1e3,
        render_per_request=render_ms / 1e3,
        render_per_token=render_us / 1e6,
        derender_per_token=derender_us / 1e6,
    )
    aims = Aims(ttft_ms / 1e3, itl_ms / 1e3, share, utilisation, transfer_ms / 1e3)
    limits = Limits(max_sequences, kv_gib * 2**30 if kv_gib is not None else float("inf"))
    try:
        kv = kv_size(json.loads(config.read_text("utf-8")), kv_dtype)
        if trace is not None:
            workload = recorded(read_trace(trace), rate)
        elif rate is not None:
            lengths = Lengths(prompt, prompt_spread), Lengths(output, output_spread)
            workload = drawn(*lengths, rate, cached_share=cached)
        else:
            raise ValueError("name the rate, or a trace with times of arrival")
        planner = Planner(workload, kv, rates, aims, limits)
        found = planner.plan()
    except Unreachable as error:
        typer.echo(f"pd-orchestrator plan: cannot be met: {error}", err=True)
        raise typer.Exit(3) from None
    except (OSError, ValueError, UnknownShape) as error:
        typer.echo(f"pd-orchestrator plan: {error}", err=True)
        raise typer.Exit(2) from None
    if html is not None:
        from orchestrator.plan_report import report

        html.write_text(report(planner, found), encoding="utf-8")
    typer.echo(json.dumps(as_object(workload, found)) if as_json else as_text(workload, kv, found, aims))


def read_trace(path: Path) -> list[Asked]:
    """Lines of a trace, or of the orchestrator's log. Raises ``ValueError`` with the line's number, or
    ``OSError``."""
    read: list[Asked] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                one = _logged.decode(line).asked() if b'"event"' in line else _traced.decode(line).asked()
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if one is None:
                continue
            if one.cached > one.prompt:
                raise ValueError(f"{path}, line {number}: more cached than prompt tokens")
            read.append(one)
    return read


_traced = msgspec.json.Decoder(TraceLine)
_logged = msgspec.json.Decoder(LogLine)


def as_object(workload: Workload, plan: Plan) -> dict[str, Any]:
    """Seconds, bytes and tokens."""
    prefill, decode = plan.prefill, plan.decode
    return {
        "requests_per_second": workload.rate,
        "arrival_variation": workload.variation,
        "kv_bytes_per_token": plan.kv_bytes_per_token,
        "kv_bytes_per_request": plan.kv_bytes_per_request,
        "fabric_bytes_per_second": plan.fabric,
        "link_bytes_per_second": plan.link,
        "prefill_to_decode": plan.ratio,
        "prefill": {
            "engines": prefill.engines,
            "utilisation": prefill.queue.utilisation,
            "mean_wait": prefill.queue.mean_wait,
            "first_token": prefill.first_token,
        },
        "decode": {
            "engines": decode.engines,
            "mean_sequences": decode.crowd.mean,
            "sequences": decode.sequences,
            "mean_gap": decode.crowd.mean_gap,
            "gap": decode.gap,
            "kv_bytes": decode.kv_bytes,
        },
        "render": {"busy_cores": plan.render_cores, "cores": plan.render_cores_to_have},
    }


def as_text(workload: Workload, kv: KvSize, plan: Plan, aims: Aims) -> str:
    prefill, decode, asked = plan.prefill, plan.decode, workload.asked
    share = f"p{aims.share * 100:g}"
    means = [mean([getattr(one, name) for one in asked]) for name in ("prompt", "cached", "output")]
    windowed = f" and {kv.windowed_layers} layers with a window of {kv.window}" if kv.windowed_layers else ""
    rows = {
        "workload": "{:.3g} requests/s; on average {:.0f} prompt tokens, {:.0f} of them cached, {:.0f} output"
        " tokens".format(workload.rate, *means),
        "prefill": f"{prefill.engines} engines, {prefill.queue.utilisation:.0%} busy;"
        f" first token {share} {prefill.first_token * 1e3:.0f} ms",
        "decode": f"{decode.engines} engines, {decode.crowd.mean:.1f} sequences each"
        f" ({share} {decode.sequences:g}); gap {share} {decode.gap * 1e3:.1f} ms;"
        f" KV {share} {decode.kv_bytes / 2**30:.2f} GiB each",
        "P : D": f"{prefill.engines} : {decode.engines}",
        "KV": f"{plan.kv_bytes_per_token / 1024:g} KiB a token{windowed},"
        f" {plan.kv_bytes_per_request / 2**20:.0f} MiB a request",
        "fabric": f"{gigabits(plan.fabric)} in all; {gigabits(plan.link)} on a link for the longest prompts"
        f" in {aims.transfer * 1e3:g} ms",
        "render": f"{plan.render_cores:.2f} cores busy: have {plan.render_cores_to_have}",
    }
    return "\n".join(f"{name:<10}{text}" for name, text in rows.items())


def gigabits(bytes_a_second: float) -> str:
    return f"{bytes_a_second * 8 / 1e9:.3g} Gbit/s"
