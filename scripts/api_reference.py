#!/usr/bin/env python3
"""Write docs/api.md from the services' routes, messages and errors.

Run: python scripts/api_reference.py
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.metrics import MetricWrapperBase
from starlette.routing import Route

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator.hops.render import PATHS  # noqa: E402
from orchestrator.server import app as orchestrator_app  # noqa: E402
from orchestrator.server.abort_requests import PATH as ABORT_PATH  # noqa: E402
from orchestrator.settings import Settings  # noqa: E402
from render_tier.protocol import derender, generate, record, responses, session, tokenize  # noqa: E402
from render_tier.protocol.anthropic_answers import MessageOut  # noqa: E402
from render_tier.protocol.errors import ApiError, ErrorBody  # noqa: E402
from render_tier.protocol.response_answers import Response  # noqa: E402
from render_tier.server.app import create_app as create_render_app  # noqa: E402
from render_tier.server.endpoints import build_endpoints  # noqa: E402
from render_tier.server.metrics import build_metrics  # noqa: E402
from render_tier.server.openapi import BODIES  # noqa: E402
from render_tier.settings import Settings as RenderSettings  # noqa: E402
from scripts.message_tables import Model, sections, table  # noqa: E402

PAGE = ROOT / "docs" / "api.md"

HEAD = """# API reference

Written from the code by `scripts/api_reference.py`. A render tier serves its part as OpenAPI too, at
`/openapi.json`. What fields of OpenAI's, Anthropic's and vLLM's APIs mean is theirs to say; what is said here
is of our own making. Unknown fields of a request are ignored. Headers are in
[orchestrator.md](orchestrator.md#what-a-client-can-send) and [derender.md](derender.md), metrics in
[orchestrator.md](orchestrator.md#metrics) and [below](#metrics-of-the-render-tier), settings in
`deploy/*.example.toml`.
"""

ERRORS = """Each is `{"error": {"message", "type", "param", "code"}}` with the status as `code`; of the
Messages API it has Anthropic's shape. A status that is missing here is one that a hop gave. In a stream that
has begun an error is an event.
"""

MEANINGS: Mapping[tuple[int, str], str] = {
    (400, "Bad Request"): "The body is no JSON object, or its content type another",
    (400, "invalid_request_error"): "It needs responses that are stored, and none are",
    (422, "UnprocessableEntityError"): "What a URL of the request names could not be fetched",
    (429, "RateLimitError"): "Too many requests of this key or tenant, under way or waiting",
}
"""Of errors whose code says it in words that depend on the case."""

DERENDER: Mapping[str, Model] = {
    "/v1/chat/completions/derender": derender.ChatDerender,
    "/v1/completions/derender": derender.CompletionDerender,
    "/v1/messages/derender": derender.MessagesDerender,
    "/v1/responses/derender": derender.ResponsesDerender,
}
ANSWERS: Sequence[Model] = (
    responses.ChatCompletion,
    responses.ChatChunk,
    responses.Completion,
    responses.CompletionChunk,
    Response,
    MessageOut,
    record.Record,
    generate.GenerateResponse,
    generate.GenerateChunk,
    responses.ChunkAnswer,
    responses.EventsAnswer,
    session.Answer,
    tokenize.TokenizeResponse,
    tokenize.DetokenizeResponse,
    ErrorBody,
)
"""What is answered. A stream of events has one of them, or a part, in each event."""

SUMMARIES: Mapping[str, str] = {
    PATHS["chat"]: "OpenAI's chat completions",
    PATHS["completions"]: "OpenAI's completions",
    PATHS["messages"]: "Anthropic's messages",
    PATHS["responses"]: "OpenAI's responses",
    PATHS["generate"]: "Token IDs in, token IDs out: vLLM's API of tokens-only engines",
    ABORT_PATH: "Ends requests under way by their ids",
    "/v1/models": "The served names",
    "/metrics": "Prometheus metrics",
    "/version": "The orchestrator's version",
    "/status": "What members, queues and latencies are like: JSON, or a page for browsers",
    "/admin/drain": "Give a member, or this orchestrator, nothing new",
    "/admin/undrain": "The reverse",
    "/admin/requests/{id}": "What was decided for a request, and why",
}
"""Of the orchestrator's routes whose code does not say it in its first line."""


def route_path(path: str) -> str:
    return path.replace(":path}", "}")


# --- routes


def orchestrator_routes() -> Iterator[tuple[str, str, str, str]]:
    members = {"render": ["http://127.0.0.1:1"], "decode": ["http://127.0.0.1:2"]}
    app = orchestrator_app.create_app(Settings.model_validate({"members": members}))
    bodies: dict[str, tuple[Model, ...]] = {
        **{PATHS[kind]: BODIES[f"{PATHS[kind]}/render"] for kind in PATHS if kind != "generate"},
        **{path: BODIES[path] for path in ("/v1/messages/count_tokens", "/tokenize", "/detokenize")},
        PATHS["generate"]: (generate.GenerateRequest,),
        ABORT_PATH: (generate.AbortRequest,),
    }
    told = {path: endpoint.summary for path, endpoint in render_endpoints().items()}
    for route in app.routes:
        assert isinstance(route, Route)
        path = route_path(route.path)
        summary = SUMMARIES.get(path) or told.get(path) or first_line(route.endpoint)
        methods = ", ".join(sorted((route.methods or set()) - {"HEAD"}))
        yield methods, f"`{path}`", summary, names(bodies.get(path, ()))


def render_endpoints() -> Mapping[str, Any]:
    return build_endpoints(RenderSettings(model="m"), build_metrics())


def render_routes() -> Iterator[tuple[str, str, str, str]]:
    for path, endpoint in render_endpoints().items():
        body = BODIES.get(path) or (DERENDER[path],)
        variants = ["`?explain=true` also says why"] * bool(endpoint.explain)
        variants += ["`X-Token-Ids: base64`: IDs in short"] * bool(endpoint.compact)
        yield "POST", f"`{path}`", "; ".join([endpoint.summary, *variants]), names(body)
    yield "WebSocket", f"`{session.SESSION_PATH}`", "Streams held open", names([session.Frame])
    for path, methods in asyncio.run(openapi())["paths"].items():
        for method, operation in methods.items():
            if path not in render_endpoints():
                yield method.upper(), f"`{path}`", operation["summary"], ""


async def openapi() -> dict[str, Any]:
    """Of a render tier with every route."""
    app = create_render_app(RenderSettings(model="m", enable_tokenizer_info_endpoint=True))
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://render") as client:
        schema: dict[str, Any] = (await client.get("/openapi.json")).json()
    return schema


def first_line(function: Any) -> str:
    return (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ").rstrip(".")


def names(models: Iterable[Model]) -> str:
    return " or ".join(model.__name__ for model in models)


# --- errors


def error_rows() -> Iterator[tuple[str, str, str]]:
    """Each kind of error that a service makes; the first line of its class, or a message."""
    kinds: dict[tuple[int, str], str] = {}
    for cls in sorted(subclasses(ApiError), key=lambda cls: (cls.status, len(cls.__mro__), cls.__name__)):
        if {"status", "type"} & set(vars(cls)):
            meaning = re.sub(r" *\(\d+\)", "", " ".join((cls.__doc__ or "").split())).rstrip(".")
            kinds.setdefault((cls.status, cls.type), meaning)
    for status, kind, message in errors_on_the_spot():
        kinds.setdefault((status, kind), message)
    assert set(MEANINGS) <= set(kinds)
    for (status, kind), meaning in sorted({**kinds, **MEANINGS}.items()):
        yield str(status), f"`{kind}`", meaning.replace("``", "`")


def subclasses(cls: type[ApiError]) -> set[type[ApiError]]:
    """Of the two services; the embedded engine is another."""
    found = {one for one in cls.__subclasses__() if ".embedded." not in one.__module__}
    return found.union(*map(subclasses, found))


def errors_on_the_spot() -> Iterator[tuple[int, str, str]]:
    """Calls with a type, and maybe a status, of their own: the message as far as it is always the same."""
    statuses = {cls.__name__: cls.status for cls in subclasses(ApiError) | {ApiError}}
    for path in sorted([*(ROOT / "orchestrator").rglob("*.py"), *(ROOT / "render_tier").rglob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[message, *_]) if name in statuses:
                    given = {
                        one.arg: one.value.value
                        for one in node.keywords
                        if isinstance(one.value, ast.Constant)
                    }
                    if isinstance(kind := given.get("type"), str):
                        status = given.get("status")
                        yield status if isinstance(status, int) else statuses[name], kind, words_of(message)


def words_of(message: ast.expr) -> str:
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in parts)


# --- metrics of the render tier


def metric_rows() -> Iterator[tuple[str, str, str, str]]:
    metrics = build_metrics()
    labels = {
        one._name: one._labelnames for one in vars(metrics).values() if isinstance(one, MetricWrapperBase)
    }
    for family in metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"`{name}`", family.type, ", ".join(labels.get(family.name, ())), family.documentation


def page() -> str:
    head = ("method", "path", "", "body")
    written: set[str] = set()
    requests = [
        *dict.fromkeys(model for models in BODIES.values() for model in models),
        *(generate.GenerateRequest, generate.AbortRequest, *DERENDER.values(), session.Frame),
    ]
    parts = [
        HEAD,
        "## Orchestrator\n",
        table(head, orchestrator_routes()),
        "\n## Render tier\n",
        table(head, render_routes()),
        "\n## Errors\n",
        ERRORS,
        table(("status", "type", ""), error_rows()),
        "\n## Metrics of the render tier\n",
        table(("metric", "kind", "labels", ""), metric_rows()),
        "\n## Requests\n",
        *sections(requests, written),
        "## Answers\n",
        *sections(ANSWERS, written),
    ]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
