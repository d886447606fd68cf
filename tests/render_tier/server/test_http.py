"""What all endpoints have in common: media type, bodies, keys, request ids, readiness, overload, metrics."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from render_tier.rendering.renderer import Renderer
from render_tier.server.app import create_app
from render_tier.server.service import Service
from render_tier.settings import Settings
from tests.render_tier.conftest import Serve
from tests.support.render_app import idle

CHAT = "/v1/chat/completions/render"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}
LONG = {"messages": [{"role": "user", "content": "Hi " * 2000}]}
JSON = {"content-type": "application/json"}
POSTS = (
    CHAT,
    "/v1/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/derender",
    "/v1/messages/render",
    "/v1/messages/count_tokens",
    "/v1/messages/derender",
    "/tokenize",
    "/detokenize",
)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other tasks and threads bring about; the test's own timeout ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.001)


class TestMediaType:
    @pytest.mark.parametrize("path", POSTS)
    @pytest.mark.parametrize("media_type", ["text/plain", "application/x-json", ""])
    async def test_must_be_json(self, client: httpx.AsyncClient, path: str, media_type: str) -> None:
        response = await client.post(path, content=b"{}", headers={"content-type": media_type})
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["type"], error["param"]) == ("Bad Request", None)
        assert "Unsupported Media Type" in error["message"]

    async def test_may_have_parameters(self, client: httpx.AsyncClient) -> None:
        headers = {"content-type": "Application/JSON; charset=utf-8"}
        response = await client.post(CHAT, content=json.dumps(BODY), headers=headers)
        assert response.status_code == 200


class TestBody:
    @pytest.mark.parametrize("path", POSTS)
    @pytest.mark.parametrize(
        "body",
        [b"", b"  ", b"{", b"[]", b"null", b'"x"', b"\xff", b"{} x", b"[" * 100_000, b'{"a":"\\ud800"}'],
    )
    async def test_that_is_no_object(self, client: httpx.AsyncClient, path: str, body: bytes) -> None:
        response = await client.post(path, content=body, headers=JSON)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["code"] == 400

    async def test_too_large_by_its_declared_length(self, serve: Serve) -> None:
        client = await serve(max_body_bytes=1024)
        response = await client.post(CHAT, content=b" " * 1025, headers=JSON)
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "PayloadTooLargeError"
        assert response.headers["connection"] == "close"

    async def test_too_large_without_a_declared_length(self, serve: Serve) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b" " * 100

        client = await serve(max_body_bytes=1024)
        assert (await client.post(CHAT, content=pieces(), headers=JSON)).status_code == 413

    async def test_in_many_pieces(self, client: httpx.AsyncClient) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for byte in json.dumps(BODY).encode():
                yield bytes([byte])

        assert (await client.post(CHAT, content=pieces(), headers=JSON)).status_code == 200

    async def test_that_does_not_arrive(self, serve: Serve) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.sleep(3600)

        client = await serve(body_timeout=0.05)
        response = await client.post(CHAT, content=pieces(), headers=JSON)
        assert response.status_code == 408

    async def test_of_a_client_that_leaves(self, client: httpx.AsyncClient, qwen3_service: Service) -> None:
        app = client._transport.app  # type: ignore[attr-defined]
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": CHAT,
            "headers": [(b"content-type", b"application/json")],
        }
        await app(scope, receive, send)
        assert sent == []


class TestUnknown:
    async def test_path(self, client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/nope", json={})
        assert (response.status_code, response.json()) == (404, {"detail": "Not Found"})

    @pytest.mark.parametrize("path", POSTS)
    async def test_method(self, client: httpx.AsyncClient, path: str) -> None:
        for method in ("GET", "PUT", "DELETE"):
            response = await client.request(method, path)
            assert (response.status_code, response.json()) == (405, {"detail": "Method Not Allowed"})
            assert response.headers["allow"] == "POST"

    async def test_model(self, client: httpx.AsyncClient) -> None:
        for path, body in (
            (CHAT, BODY),
            ("/v1/completions/render", {"prompt": "x"}),
            ("/tokenize", {"prompt": "x"}),
        ):
            response = await client.post(path, json={**body, "model": "other"})
            assert response.status_code == 404
            assert response.json()["error"]["param"] == "model"


async def test_one_model_is_found_by_its_name(client: httpx.AsyncClient) -> None:
    cards = (await client.get("/v1/models")).json()["data"]
    for card in cards:
        found = await client.get(f"/v1/models/{card['id']}")
        assert (found.status_code, found.json()["id"]) == (200, card["id"])
    for name in ("nope", "org/nope"):
        missing = await client.get(f"/v1/models/{name}")
        error = missing.json()["error"]
        assert (missing.status_code, error["param"], error["code"]) == (404, "model", 404)


class TestKeys:
    @pytest.mark.parametrize(
        "headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic good"}]
    )
    async def test_wrong(self, serve: Serve, headers: dict[str, str]) -> None:
        client = await serve(api_key=("good", "better"))
        for path in (CHAT, "/v1/models", "/v1/unknown"):
            response = await client.post(path, json=BODY, headers=headers)
            assert (response.status_code, response.json()) == (401, {"error": "Unauthorized"})
        assert (await client.get("/v1/models", headers=headers)).status_code == 401

    @pytest.mark.parametrize("key", ["good", "better"])
    async def test_right(self, serve: Serve, key: str) -> None:
        client = await serve(api_key=("good", "better"))
        headers = {"authorization": f"Bearer {key}"}
        assert (await client.post(CHAT, json=BODY, headers=headers)).status_code == 200

    async def test_open_paths(self, serve: Serve) -> None:
        client = await serve(api_key=("good",))
        for path in ("/health", "/ping", "/ready", "/version", "/load", "/metrics"):
            assert (await client.get(path)).status_code == 200
        assert (await client.post("/tokenize", json={"prompt": "x"})).status_code == 200
        assert (await client.options("/v1/models")).status_code != 401


class TestRequestId:
    async def test_is_part_of_the_rendered_id(self, client: httpx.AsyncClient) -> None:
        response = await client.post(
            CHAT, json={**BODY, "request_id": "body"}, headers={"X-Request-Id": "head"}
        )
        assert response.json()["request_id"] == "chatcmpl-head"
        assert "x-request-id" not in response.headers

    async def test_is_answered_when_switched_on(self, serve: Serve) -> None:
        client = await serve(enable_request_id_headers=True)
        response = await client.post(CHAT, json=BODY, headers={"X-Request-Id": "head"})
        assert response.headers["x-request-id"] == "head"
        assert len((await client.get("/health")).headers["x-request-id"]) == 32


async def test_rendered_reply_names_the_fingerprint(client: httpx.AsyncClient) -> None:
    ready = (await client.get("/ready")).json()
    for path, body in ((CHAT, BODY), (CHAT, LONG), ("/v1/completions/render", {"prompt": "x"})):
        response = await client.post(path, json=body)
        assert response.headers["x-render-fingerprint"] == ready["fingerprint"]


async def test_inline_and_pooled_answers_are_equal(serve: Serve) -> None:
    inline, pooled = await serve(inline_body_bytes=10**9), await serve(inline_body_bytes=0)
    body = {**LONG, "request_id": "r", "return_token_offsets": True}
    assert (await inline.post(CHAT, json=body)).content == (await pooled.post(CHAT, json=body)).content


class TestReadiness:
    async def test_while_the_model_loads(
        self, qwen3_settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loading, go_on = threading.Event(), threading.Event()

        def load(_: Settings) -> Service:
            loading.set()
            go_on.wait(60)
            raise OSError("disk gone")

        monkeypatch.setattr(Service, "load", load)
        failures: list[Exception] = []
        app = create_app(qwen3_settings, on_failure=failures.append)
        transport = httpx.ASGITransport(app)
        await app.runtime.start()
        async with httpx.AsyncClient(transport=transport, base_url="http://render-tier") as client:
            await asyncio.to_thread(loading.wait, 60)
            assert (await client.get("/health")).status_code == 200
            ready = await client.get("/ready")
            assert (ready.status_code, ready.json()) == (503, {"status": "loading"})
            response = await client.post(CHAT, json=BODY)
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"
            assert (await client.get("/v1/models")).status_code == 503
            assert (await client.get("/v1/models/x")).status_code == 503
            go_on.set()
            await until(lambda: bool(failures))
            assert (await client.get("/ready")).json() == {"status": "failed"}
        assert str(failures[0]) == "disk gone"
        await idle(app)

    async def test_ready(self, client: httpx.AsyncClient) -> None:
        response = await client.get("/ready")
        assert response.status_code == 200
        assert response.json()["status"] == "ready"
        assert response.json()["model"] == "qwen3"


class TestOverload:
    """One thread, held by a test; what comes on top waits or is refused."""

    @pytest.fixture
    def hold(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Renders wait until it is set."""
        release = threading.Event()
        chat = Renderer.render_chat

        def slow_chat(*args: Any, **kwargs: Any) -> Any:
            assert release.wait(60)
            return chat(*args, **kwargs)

        monkeypatch.setattr("render_tier.rendering.renderer.Renderer.render_chat", slow_chat)
        return release

    async def test_full_queue_is_an_answer_at_once(self, serve: Serve, hold: threading.Event) -> None:
        hold.set()
        client = await serve(max_queue=1)
        runtime = client._transport.app.runtime  # type: ignore[attr-defined]
        hold.clear()
        held = [asyncio.create_task(client.post(CHAT, json=LONG)) for _ in range(2)]
        await until(lambda: runtime.pools["render"].saturated)
        refused = await client.post(CHAT, json=LONG)
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "ServiceUnavailableError"
        assert int(refused.headers["retry-after"]) >= 1
        ready = await client.get("/ready")
        assert (ready.status_code, ready.json()["status"]) == (503, "saturated")
        # The other pool, small requests and probes are not held up.
        assert (await client.get("/health")).status_code == 200
        assert (await client.post("/detokenize", json={"tokens": [9707] * 3000})).status_code == 503
        assert (await client.post("/detokenize", json={"tokens": [9707]})).json() == {"prompt": "Hello"}
        hold.set()
        assert [response.status_code for response in await asyncio.gather(*held)] == [200, 200]
        metrics = (await client.get("/metrics")).text
        assert 'render_tier_refused_total{reason="render_queue"} 2.0' in metrics

    async def test_too_many_at_once(self, serve: Serve, hold: threading.Event) -> None:
        hold.set()
        client = await serve(max_concurrency=1)
        hold.clear()
        runtime = client._transport.app.runtime  # type: ignore[attr-defined]
        held = asyncio.create_task(client.post(CHAT, json=LONG))
        await until(lambda: runtime.pending == 1)
        assert (await client.post(CHAT, json=BODY)).status_code == 503
        hold.set()
        assert (await held).status_code == 200

    async def test_job_of_a_client_that_leaves_is_taken_out_of_the_queue(
        self, serve: Serve, hold: threading.Event
    ) -> None:
        hold.set()
        client = await serve(max_queue=5)
        hold.clear()
        runtime = client._transport.app.runtime  # type: ignore[attr-defined]
        held = asyncio.create_task(client.post(CHAT, json=LONG))
        waiting = asyncio.create_task(client.post(CHAT, json=LONG))
        await until(lambda: runtime.pending == 2)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        hold.set()
        assert (await held).status_code == 200
        await asyncio.sleep(0)
        assert runtime.pending == 0


async def test_fault_of_ours_is_a_plain_500(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret path /etc/passwd")

    monkeypatch.setattr("render_tier.server.service.Renderer.render_chat", broken)
    response = await client.post(CHAT, json=BODY)
    assert response.status_code == 500
    assert response.json() == {
        "error": {
            "message": "Internal server error",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
    }


class TestMetrics:
    async def test_count_requests_by_route_and_status(self, client: httpx.AsyncClient) -> None:
        await client.post(CHAT, json=BODY)
        await client.post(CHAT, json={})
        for name in ("/a", "/b", "/c"):
            await client.get(name)
        text = (await client.get("/metrics")).text
        assert f'render_tier_requests_total{{route="{CHAT}",status="200"}} 1.0' in text
        assert f'render_tier_requests_total{{route="{CHAT}",status="400"}} 1.0' in text
        assert 'render_tier_requests_total{route="other",status="404"} 3.0' in text
        assert "render_tier_prompt_tokens_total 9.0" in text
        assert "render_tier_ready 1.0" in text
        assert "render_tier_in_flight 0.0" in text

    async def test_load_counts_what_is_in_progress(self, client: httpx.AsyncClient) -> None:
        assert (await client.get("/load")).json() == {"server_load": 0}


class TestSchema:
    async def test_describes_every_endpoint(self, client: httpx.AsyncClient) -> None:
        schema = (await client.get("/openapi.json")).json()
        assert set(POSTS) <= set(schema["paths"])
        for path in POSTS:
            assert "requestBody" in schema["paths"][path]["post"]

    async def test_can_be_hidden(self, serve: Serve) -> None:
        client = await serve(disable_fastapi_docs=True)
        for path in ("/openapi.json", "/docs", "/redoc"):
            assert (await client.get(path)).status_code == 404


async def test_derender_answers_what_render_rendered(client: httpx.AsyncClient) -> None:
    rendered = (await client.post(CHAT, json=BODY)).json()
    answer = [14990, 151668, 271, 9707, 13, 151645]  # "hello</think>\n\nHello.<|im_end|>"
    generated = {
        "request_id": "generate-tokens-1",
        "choices": [{"index": 0, "token_ids": answer, "finish_reason": "stop"}],
    }
    response = await client.post(
        "/v1/chat/completions/derender",
        json={
            "generate_response": generated,
            "prompt_token_ids": rendered["token_ids"],
            "chat_request": BODY,
        },
    )
    assert response.status_code == 200, response.text
    message = response.json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("hello", "\n\nHello.")
