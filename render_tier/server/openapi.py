"""The raw endpoints in the OpenAPI schema: FastAPI does not route them, so it has to be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from render_tier.protocol.anthropic import CountTokensRequest, MessagesRequest
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.responses_request import ResponsesRequest
from render_tier.protocol.tokenize import DetokenizeRequest, TokenizeChatRequest, TokenizeTextRequest
from render_tier.server.endpoints import Endpoint

BODIES: dict[str, tuple[type[BaseModel], ...]] = {
    "/v1/chat/completions/render": (ChatCompletionRequest,),
    "/v1/completions/render": (CompletionRequest,),
    "/v1/responses/render": (ResponsesRequest,),
    "/v1/messages/render": (MessagesRequest,),
    "/v1/messages/count_tokens": (CountTokensRequest,),
    "/tokenize": (TokenizeTextRequest, TokenizeChatRequest),
    "/detokenize": (DetokenizeRequest,),
}
"""Request models by path; other endpoints take an object that their own decoder describes."""
REFERENCE = "#/components/schemas/{model}"
EXPLAIN = {
    "name": "explain",
    "in": "query",
    "description": "Also say why: the text with its tokens, and the source of every default",
    "schema": {"type": "boolean", "default": False},
}
TOKEN_IDS = {
    "name": "X-Token-Ids",
    "in": "header",
    "description": "base64: token_ids as the base64 of little-endian 32-bit integers",
    "schema": {"type": "string", "enum": ["base64"]},
}
ERRORS = {
    "400": "The request is wrong",
    "404": "The model is not served",
    "409": "The context is not known here",
    "413": "The body is too large",
    "503": "Overloaded or loading",
}


def describe_endpoints(api: FastAPI, endpoints: Sequence[Endpoint]) -> None:
    """Add ``endpoints`` to the schema of ``api``, which is built when it is first asked for."""
    build = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            schema = build()
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            for endpoint in endpoints:
                schema["paths"][endpoint.path] = {"post": _operation(endpoint, components)}
            api.openapi_schema = schema
        return api.openapi_schema

    api.openapi = openapi  # type: ignore[method-assign]


def _operation(endpoint: Endpoint, components: dict[str, Any]) -> dict[str, Any]:
    body = _body_schema(BODIES.get(endpoint.path, ()), components)
    answer: dict[str, Any] = {"application/json": {"schema": {}}}
    return {
        "summary": endpoint.summary,
        "operationId": endpoint.path.strip("/").replace("/", "_"),
        "parameters": [*([EXPLAIN] if endpoint.explain else ()), *([TOKEN_IDS] if endpoint.compact else ())],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": {"description": "Done", "content": answer},
            **{status: {"description": text, "content": answer} for status, text in ERRORS.items()},
        },
    }


def _body_schema(models: Sequence[type[BaseModel]], components: dict[str, Any]) -> dict[str, Any]:
    references = []
    for model in models:
        schema = model.model_json_schema(ref_template=REFERENCE)
        components.update(schema.pop("$defs", {}))
        components[model.__name__] = schema
        references.append({"$ref": REFERENCE.format(model=model.__name__)})
    if not references:
        return {"type": "object"}
    return references[0] if len(references) == 1 else {"anyOf": references}
