"""``pd-orchestrator explain``: what was decided for a request, and why, for a terminal."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote

import typer

from orchestrator.terminal import number, require_ok, table

if TYPE_CHECKING:
    import httpx

PATHS: Final = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/responses"}
"""Where a request with this field goes, if nothing else is said."""

LOOKS: Final = 20
BETWEEN_LOOKS: Final = 0.1
"""Seconds."""


def explain(
    request: Annotated[
        str,
        typer.Argument(
            help="The id of a request that has ended (of the response, of a log line, its X-Request-Id),"
            " or a JSON file with a request, which is then sent."
        ),
    ],
    url: Annotated[str, typer.Option(help="Base URL of the orchestrator.")] = "http://127.0.0.1:8000",
    key: Annotated[
        str | None, typer.Option(help="Its server.admin_key.", envvar="PD_ORCHESTRATOR_ADMIN_KEY")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="A client's key, with which a file is sent.", envvar="OPENAI_API_KEY")
    ] = None,
    path: Annotated[
        str | None, typer.Option(help="Where a file is sent; by default what its fields say.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The record as it is.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds.")] = 60.0,
) -> None:
    """Show which members a request was given to, from which candidates and why, what each hop took, and how
    it ended. Exits with 1 when that cannot be told."""
    import httpx

    try:
        with httpx.Client(base_url=url, timeout=timeout) as client:
            sent = _send(client, Path(request), path, api_key) if Path(request).is_file() else None
            record = _record(client, request, key) if sent is None else _record_of_sent(client, sent, key)
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        typer.echo(f"pd-orchestrator: nothing to explain from {url}: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(json.dumps(record, indent=2) if as_json else page(record))


def _record(client: httpx.Client, named: str, key: str | None) -> dict[str, Any]:
    """Raises ``ValueError`` where there is none."""
    admin = {} if key is None else {"Authorization": f"Bearer {key}"}
    reply = client.get(f"/admin/requests/{quote(named, safe='')}", headers=admin)
    require_ok(reply)
    record: dict[str, Any] = reply.json()
    return record


def _record_of_sent(client: httpx.Client, answer: httpx.Response, key: str | None) -> dict[str, Any]:
    """A request ends a moment after its answer. One that was refused before it began has no record, and its
    own error says why."""
    named = answer.headers.get("x-request-id", "")
    for _ in range(LOOKS):
        try:
            return _record(client, named, key)
        except ValueError:
            require_ok(answer)
            time.sleep(BETWEEN_LOOKS)
    return _record(client, named, key)


def _send(client: httpx.Client, file: Path, path: str | None, api_key: str | None) -> httpx.Response:
    body = json.loads(file.read_bytes())
    where = path or next((PATHS[name] for name in PATHS if isinstance(body, dict) and name in body), None)
    if where is None:
        raise ValueError(f"{file} has none of {', '.join(PATHS)}: say --path")
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    return client.post(where, json=body, headers=headers)


def page(record: dict[str, Any]) -> str:
    """``record`` is the object that ``/admin/requests/ID`` gives."""
    return "\n".join(_lines(record))


def _lines(record: dict[str, Any]) -> Iterator[str]:
    names = [f"client's id {record['client_id']}"] if record["client_id"] else []
    names += [f"trace {record['trace_id']}"] if record["trace_id"] else []
    yield "  ".join([f"request {record['id']}", *names])
    error, ended = record["error"], record["outcome"]
    if error is not None:
        ended += f": {error['status']} {error['message']}"
    kind = "streaming" if record["stream"] else "whole"
    yield f"{record['endpoint']}, {kind}, choices {record['runs']}, ended {ended}"
    counts = [f"{name} {value}" for name, value in record["usage"].items() if isinstance(value, int)]
    yield f"tokens: {'  '.join(counts)}"
    for decision in record["decisions"]:
        yield ""
        yield from _decision(decision)
    yield ""
    timing = record["timing"]
    spans = [
        (name.removesuffix("_ms"), number(value))
        for name, value in timing.items()
        if name.endswith("_ms") and not isinstance(value, dict)
    ]
    yield from table(("SPAN", "MS"), [*spans, ("inter token, mean", number(timing["itl_ms"]["mean"]))])


def _decision(decision: dict[str, Any]) -> Iterator[str]:
    why = "; affinity preferred another one, which has too much to do" if decision["spilled"] else ""
    yield f"{decision['role']} -> {decision['winner']} by {decision['policy']}{why}"
    header = ("", "CANDIDATE", "ACTIVE", "CACHED BLOCKS", "INDEX", "RANK", "AGAINST IT")
    rows = [
        (
            "*" if each["member"] == decision["winner"] else " ",
            each["member"],
            str(each["active"]),
            str(each["cached_blocks"]),
            each["index"],
            f"{each['rank']:.4f}",
            ", ".join(_against(each)) or "-",
        )
        for each in decision["candidates"]
    ]
    yield from (f"  {line}" for line in table(header, rows))


def _against(candidate: dict[str, Any]) -> Iterator[str]:
    if not candidate["healthy"]:
        yield "unwell"
    if candidate["tried"]:
        yield "has failed this request"
