"""``pd-orchestrator status``: what ``/status`` says, for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from orchestrator.terminal import number, require_ok, table


def status(
    url: Annotated[str, typer.Option(help="Base URL of the orchestrator.")] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None, typer.Option(help="Its server.admin_key.", envvar="PD_ORCHESTRATOR_ADMIN_KEY")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The answer as it is.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds.")] = 5.0,
) -> None:
    """Show members, queues and latencies of a running orchestrator. Exits with 1 when it does not answer and
    with 3 when it is not ready."""
    import httpx

    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        reply = httpx.get(f"{url.rstrip('/')}/status", headers=headers, timeout=timeout)
        require_ok(reply)
        answer: dict[str, Any] = reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        typer.echo(f"pd-orchestrator: no status from {url}: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(json.dumps(answer, indent=2) if as_json else page(answer))
    if answer["missing_roles"] or answer["draining"]:
        raise typer.Exit(3)


def page(answer: dict[str, Any]) -> str:
    """``answer`` is the object that ``/status`` gives."""
    return "\n".join(_lines(answer))


def _lines(answer: dict[str, Any]) -> Iterator[str]:
    ready = "draining" if answer["draining"] else "ready"
    if answer["missing_roles"]:
        ready = f"NOT READY, nobody for: {', '.join(answer['missing_roles'])}"
    yield (
        f"orchestrator {answer['version']}  config {answer['config']}  up {answer['uptime_seconds']:.0f} s  "
        f"worker {answer['worker']}  in flight {answer['in_flight']}  {ready}"
    )
    yield ""
    header = ("ROLE", "MEMBER", "STATE", "GENERATION", "BREAKER", "IN FLIGHT", "LEASES")
    rows = [
        (
            role,
            member["url"],
            member["state"].replace("_", " "),
            member["generation"] or "-",
            member["breaker"],
            str(member["in_flight"]),
            str(member["leases"]),
        )
        for role, members in answer["pools"].items()
        for member in members
    ]
    yield from table(header, rows)
    for role, members in answer["pools"].items():
        for member in members:
            yield from _about(role, member)
    yield ""
    yield from _sources(answer["sources"])
    limits = answer["engine_limits"]
    known = [f"{name} {limits[name]}" for name in ("vocab_size", "max_model_len") if limits[name] is not None]
    yield f"engines take: {', '.join([*known, *limits['capabilities']]) or 'nothing is known'}"
    yield ""
    queues = [
        (name, str(gate["active"]), str(gate["limit"]), str(gate["waiting"]))
        for name, gate in answer["queues"].items()
    ]
    yield from table(("QUEUE", "ACTIVE", "LIMIT", "WAITING"), queues)
    yield ""
    spans = [
        (name, str(span["count"]), number(span["p50_ms"]), number(span["p99_ms"]))
        for name, span in answer["latency"].items()
    ]
    yield from table(("LATENCY", "REQUESTS", "P50 MS", "P99 MS"), spans)


def _about(role: str, member: dict[str, Any]) -> Iterator[str]:
    """What is known of a member, and what speaks against it. ``?`` marks what it does not report itself."""
    facts = [
        f"{name}={fact['value']}{'' if fact['verified'] else '?'}"
        for name, fact in member["capabilities"].items()
    ]
    if facts:
        yield f"  {role} {member['url']}: {' '.join(facts)}"
    relation = {"equal": "", "at_least": "at least ", "at_most": "at most "}
    for difference in member["differences"]:
        verdict = "KEPT OUT" if difference["keeps_out"] else "note"
        yield (
            f"  {role} {member['url']} {verdict}: {difference['field']} is {difference['own']}, "
            f"{difference['source']} needs {relation[difference['relation']]}{difference['needed']}"
        )


def _sources(sources: Sequence[dict[str, Any]]) -> Iterator[str]:
    for source in sources:
        state = "ok" if source["error"] is None else f"FAILING: {source['error']}"
        yield f"source {source['name']}: {source['members']} members, {state}"
