"""Every recorded request to a render server, against ours: token IDs exact, other fields equal or listed."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from render_tier.server.app import RenderApp
from render_tier.server.service import Service
from render_tier.settings import Settings
from tests.support.corpus import exchanges
from tests.support.render_app import QWEN3, app_client, idle, load_service, settings_for

RECORDED = [
    *exchanges("endpoints"),
    *exchanges("render_edge"),
    *exchanges("derender_whole"),
    *exchanges("derender_stream"),
]
NOT_OFFERED = {
    "/kv_event_sources",
    "/v1/systemone",
    "/invocations",
}
"""Paths that the recorded server has and this one does not: 404."""
RENDER = (
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/responses/render",
    "/v1/messages/render",
)
TOKENIZE = ("/tokenize", "/detokenize")
LLAMA = {
    "derender_stream/002-tools_auto_noparser",
    "derender_stream/004-tools_none",
    "derender_stream/005-cmpl_bos",
}
"""Recorded from a Llama 3.1 server without parsers."""
GPT_OSS = {"derender_stream/003-msg_thinking_disabled"}
"""Of a gpt-oss server: `test_messages_prompts.py` has the same refusal, the harmony corpora the rest."""

REFUSED_HERE = {
    "render_edge/036-logprobs_over": ("logprobs", "more logprobs than the engine gives; it fails there"),
    "render_edge/038-err_regex": ("structured_outputs", "no engine can compile the pattern"),
    "render_edge/039-err_schema": ("structured_outputs", "the schema is not JSON"),
}
"""Recorded 200s whose request fails at the engine: 400 here (param, reason)."""
OWN_MESSAGE = {
    "render_edge/012-err_no_messages": "the same fault, described by our decoder",
    "render_edge/014-err_bad_json": "the same fault, described by our decoder",
    "render_edge/052-resp_prev": "ours says what to send instead",
    "derender_stream/013-n_gt": "vLLM names an environment variable of its own",
}
NOISE = {"skip_clone", "skip_reading_prefix_cache"}
"""Engine-internal flags that vLLM leaks into the parameters."""
ENGINE_DEFAULTS: dict[str, Any] = {
    "n": 1,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "stop": [],
    "stop_token_ids": [],
    "bad_words": [],
    "skip_special_tokens": True,
    "extra_args": {},
    "max_tokens": 16,
}
"""What an engine takes for an absent field; a recording without max_tokens means 16."""


def _named(recorded: list[dict[str, Any]], paths: tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(exchange, id=exchange["id"])
        for exchange in recorded
        if exchange["request"]["path"] in paths and exchange["id"] not in GPT_OSS
    ]


Servers = dict[str, tuple[Settings, Service]]
ClientOf = Callable[[str], Awaitable[httpx.AsyncClient]]


@pytest.fixture(scope="module")
def servers(qwen3_dir: Path, llama3_1_dir: Path) -> Servers:
    settings = {
        "qwen3": settings_for(qwen3_dir, **QWEN3),
        "llama": settings_for(
            llama3_1_dir,
            served_model_name=("llama",),
            max_model_len=131072,
            override_generation_config={"temperature": 0.6, "top_p": 0.9},
        ),
    }
    return {name: (chosen, load_service(chosen)) for name, chosen in settings.items()}


@pytest.fixture
async def client_of(servers: Servers) -> AsyncIterator[ClientOf]:
    """``await client_of(name)``: a client of that server."""
    opened: list[tuple[RenderApp, httpx.AsyncClient]] = []

    async def open_client(name: str) -> httpx.AsyncClient:
        opened.append(await app_client(*servers[name]))
        return opened[-1][1]

    yield open_client
    for app, client in opened:
        await client.aclose()
        await idle(app)


async def _replay(client: httpx.AsyncClient, request: dict[str, Any]) -> httpx.Response:
    body = request["body"]
    content = body if isinstance(body, str) else None if body is None else json.dumps(body)
    return await client.request(
        request["method"], request["path"], content=content, headers=request["headers"]
    )


@pytest.mark.parametrize("exchange", _named(RECORDED, RENDER))
async def test_render(exchange: dict[str, Any], client_of: ClientOf, servers: Servers) -> None:
    server = "llama" if exchange["id"] in LLAMA else "qwen3"
    response = await _replay(await client_of(server), exchange["request"])
    recorded = exchange["response"]
    if exchange["id"] in REFUSED_HERE:
        assert response.status_code == 400
        assert response.json()["error"]["param"] == REFUSED_HERE[exchange["id"]][0]
        return
    assert response.status_code == recorded["status"], response.text
    body = response.json()
    if response.status_code != 200:
        if exchange["id"] in OWN_MESSAGE:
            expected = {**recorded["body"]["error"], "message": body["error"]["message"]}
            assert body["error"]["message"]
            assert body == {"error": expected}
            return
        assert body == recorded["body"]
        return
    eos = list(servers[server][1].assets.eos_token_ids)
    ours = body if isinstance(body, list) else [body]
    theirs = recorded["body"] if isinstance(recorded["body"], list) else [recorded["body"]]
    assert len(ours) == len(theirs)
    for mine, peer in zip(ours, theirs, strict=True):
        _assert_same_request(mine, peer, exchange["request"], eos)


def _assert_same_request(
    mine: dict[str, Any], peer: dict[str, Any], request: dict[str, Any], eos: list[int]
) -> None:
    mine, peer = dict(mine), dict(peer)
    _assert_same_id(mine.pop("request_id"), peer.pop("request_id"), request)
    # The parser's arguments hold no trace of another model family.
    if peer["reasoning_parser_kwargs"] is not None:
        kwargs = {**peer["reasoning_parser_kwargs"]["chat_template_kwargs"]}
        assert kwargs.pop("cohere_format") == "cmd4"
        peer["reasoning_parser_kwargs"] = {"chat_template_kwargs": kwargs}
    mine_params, peer_params = mine.pop("sampling_params"), peer.pop("sampling_params")
    assert "max_tokens" in mine_params, "absent means something else to an engine"
    assert set(mine_params) & NOISE == set()
    _assert_same_constraint(
        mine_params.pop("structured_outputs", None),
        peer_params.pop("structured_outputs", None),
        request["body"],
    )
    mine_params = {**ENGINE_DEFAULTS, **mine_params}
    peer_params = {**ENGINE_DEFAULTS, **{k: v for k, v in peer_params.items() if k not in NOISE}}
    if not peer_params.get("ignore_eos"):
        # An engine without a tokenizer stops on no EOS that it is not told.
        peer_params["stop_token_ids"] = [*peer_params["stop_token_ids"], *eos]
    assert mine_params == peer_params
    assert mine.pop("warnings", []) == [] or "not json" in json.dumps(request["body"])
    assert mine == peer


def _assert_same_id(mine: str, peer: str, request: dict[str, Any]) -> None:
    if "X-Request-Id" in request["headers"] or "request_id" in request["body"]:
        assert mine == peer
        return
    pattern = re.sub(r"(?<=[-_])[0-9a-f]{16}", "[0-9a-f]{16}", peer)
    assert re.fullmatch(pattern, mine), mine


def _assert_same_constraint(mine: Any, peer: Any, request: dict[str, Any]) -> None:
    if peer is None:
        assert mine is None
        return
    peer = {name: value for name, value in peer.items() if value is not None and value is not False}
    if "structural_tag" not in peer:
        assert mine == peer
        return
    assert mine.keys() == peer.keys() == {"structural_tag"}
    mine_tag, peer_tag = json.loads(mine["structural_tag"]), json.loads(peer["structural_tag"])
    if request.get("tool_choice", "auto") != "auto":
        # A demanded call is held to its argument schema; vLLM 0.32 takes any JSON unless the tool is strict.
        _enforce_schemas(peer_tag, {tool["function"]["name"]: tool["function"] for tool in request["tools"]})
    assert mine_tag == peer_tag


def _enforce_schemas(tag: dict[str, Any], functions: dict[str, Any]) -> None:
    for item in tag["format"]["tags"]:
        name = re.search(r'"name": "([^"]+)"', item["begin"])
        assert name is not None
        assert item["content"]["json_schema"] is True
        item["content"]["json_schema"] = functions[name[1]]["parameters"]


@pytest.mark.parametrize("exchange", _named(RECORDED, TOKENIZE))
async def test_tokenize_and_detokenize(exchange: dict[str, Any], client_of: ClientOf) -> None:
    response = await _replay(await client_of("qwen3"), exchange["request"])
    assert (response.status_code, response.json()) == (
        exchange["response"]["status"],
        exchange["response"]["body"],
    )


@pytest.mark.parametrize("exchange", _named(RECORDED, tuple(NOT_OFFERED)))
async def test_endpoints_that_are_not_offered(exchange: dict[str, Any], client_of: ClientOf) -> None:
    response = await _replay(await client_of("qwen3"), exchange["request"])
    assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})


OTHER = tuple(
    {exchange["request"]["path"] for exchange in RECORDED if "derender" not in exchange["request"]["path"]}
    - {*RENDER, *TOKENIZE, *NOT_OFFERED, "/v1/messages/count_tokens"}
)
"""Counting, which the recorded server has not, has tests of its own."""


@pytest.mark.parametrize("exchange", _named(RECORDED, OTHER))
async def test_other_endpoints(exchange: dict[str, Any], client_of: ClientOf) -> None:
    """Health, models, metrics, and paths that neither server has."""
    request, recorded = exchange["request"], exchange["response"]
    response = await _replay(await client_of("qwen3"), request)
    assert response.status_code == recorded["status"]
    match request["path"]:
        case "/version" | "/metrics":
            assert response.content
        case "/v1/models":
            mine, peer = response.json()["data"], recorded["body"]["data"]
            assert [card.keys() for card in mine] == [card.keys() for card in peer]
            assert [(card["id"], card["max_model_len"]) for card in mine] == [("qwen3", 40960)]
        case _ if recorded["body"] == "":
            assert response.content == b""
        case _:
            assert response.json() == recorded["body"]
