"""``pd-orchestrator explain`` and the records behind it: what was decided, from what, and how it ended."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from orchestrator.cli import app
from orchestrator.server.explaining import REQUEST, told
from orchestrator.server.sibling_metrics import END, Siblings, socket_of
from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT, GENERATE, Status

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "one two three"}], "max_tokens": 4}


async def explain(stack: Stack, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["explain", *arguments, "--url", stack.url])


async def test_a_request_is_explained_by_any_of_its_ids(launch: Launch) -> None:
    async with launch(prefill=2, decode=2) as stack:
        reply = await stack.http.post(CHAT, json=BODY, headers={"X-Request-Id": "mine/1"})
        await stack.settled()
        record = json.loads((await explain(stack, reply.json()["id"], "--json")).output)
        assert [each["role"] for each in record["decisions"]] == ["render", "prefill", "decode"]
        assert record["usage"]["completion_tokens"] == 4
        served = {tier.url: len(tier.requests[GENERATE]) for tier in (*stack.prefill, *stack.decode)}
        for decision in record["decisions"][1:]:
            assert served[decision["winner"]]
            assert decision["winner"] in {each["member"] for each in decision["candidates"]}
        for name in (record["id"], record["id"].removeprefix("chatcmpl-"), "mine/1"):
            shown = await explain(stack, name)
            assert shown.exit_code == 0, shown.output
            lines = shown.output.splitlines()
            assert lines[0] == f"request {record['id']}  client's id mine/1"
            assert lines[1] == "chat, whole, choices 1, ended ok"
            assert f"prefill -> {record['decisions'][1]['winner']} by prefix_affinity" in lines
            assert any(line.startswith("ttft") for line in lines)
        missing = await explain(stack, "mine/1 %")
        assert missing.exit_code == 1
        assert "is none of the last 256 requests" in missing.output


async def test_a_failure_is_explained_with_what_had_been_tried(launch: Launch) -> None:
    async with launch(prefill=2) as stack:
        for tier in stack.prefill:
            tier.faults[GENERATE] = [Status(503)]
        reply = await stack.http.post(CHAT, json=BODY, headers={"X-Request-Id": "failed"})
        assert reply.status_code == 503
        await stack.settled()
        lines = (await explain(stack, "failed")).output.splitlines()
        assert lines[1].startswith("chat, whole, choices 1, ended unavailable: 503 ")
        prefills = [line for line in lines if line.startswith("prefill -> ")]
        assert len({line.split()[2] for line in prefills}) == 2
        assert sum("has failed this request" in line for line in lines) == 1


async def test_a_file_is_sent_and_explained(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "request.json"
    async with launch() as stack:
        for body, said in (
            (BODY | {"stream": True}, "chat, streaming, choices 1, ended ok"),
            ({"prompt": "one two", "n": 2, "max_tokens": 2}, "completions, whole, choices 2, ended ok"),
            (BODY | {"messages": []}, "chat, whole, choices 1, ended client_error: 400 messages is empty"),
        ):
            file.write_text(json.dumps(body))
            shown = await explain(stack, str(file))
            assert shown.exit_code == 0, shown.output
            assert said in shown.output.splitlines()
        for text, said in (
            ('{"prompt": "x", "echo": true}', "400 echo is not supported"),
            ('{"text": 1}', "has none of messages, prompt, input: say --path"),
            ("{", "nothing to explain"),
        ):
            file.write_text(text)
            shown = await explain(stack, str(file))
            assert shown.exit_code == 1
            assert said in shown.output
        await stack.settled()


async def test_so_many_are_kept_and_only_operators_are_told(launch: Launch) -> None:
    settings = {"server": {"explained_requests": 2, "admin_key": "s3cret"}}
    async with launch(settings=settings) as stack:
        for name in ("first", "second", "third"):
            reply = await stack.http.post(CHAT, json=BODY, headers={"X-Request-Id": name})
            assert reply.status_code == 200
        await stack.settled()
        assert (await stack.http.get("/admin/requests/third")).status_code == 401
        operator = {"Authorization": "Bearer s3cret"}
        for name, status in (("first", 404), ("second", 200), ("third", 200), ("%ED%A0%80", 404)):
            reply = await stack.http.get(f"/admin/requests/{name}", headers=operator)
            assert reply.status_code == status
        assert (await explain(stack, "third", "--key", "s3cret")).exit_code == 0
        assert "401" in (await explain(stack, "third")).output


async def test_a_request_that_another_worker_has_served_is_found(launch: Launch, tmp_path: Path) -> None:
    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readline()
        writer.write((b'{"id": "theirs"}' if asked == b"request theirs\n" else b"") + END)
        writer.close()

    other = await asyncio.start_unix_server(tell, socket_of(tmp_path, 1))
    async with launch() as stack:
        siblings = Siblings(tmp_path, {REQUEST: partial(told, stack.services)}, 5.0)
        await siblings.open()
        stack.server.config.app.state.siblings = siblings  # type: ignore[union-attr]
        reply = await stack.http.post(CHAT, json=BODY, headers={"X-Request-Id": "ours"})
        await stack.settled()
        assert (await stack.http.get("/admin/requests/ours")).json()["id"] == reply.json()["id"]
        assert (await stack.http.get("/admin/requests/theirs")).json() == {"id": "theirs"}
        for unknown in ("nobodys", "a%0Ab", "x" * 9000):
            assert (await stack.http.get(f"/admin/requests/{unknown}")).status_code == 404
        await siblings.close()
    other.close()
