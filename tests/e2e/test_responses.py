"""`client.responses` of the official `openai` client against all four hops as real processes."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from orchestrator.demo.script import WEATHER_TOOL
from tests.support.processes import ServerProcess
from tests.support.stacks import Scripted, becomes_idle, parts_of_the_script

ASK: dict[str, Any] = {"model": "smollm2", "input": "What is the capital of France?", "temperature": 0}
WEATHER: dict[str, Any] = {"type": "function", **WEATHER_TOOL["function"]}
WALK: dict[str, Any] = {"model": "qwen3", "input": "A walk in Oslo?", "tools": [WEATHER]}


# ---- a model's answer --------------------------------------------------------------------------------------


def test_whole_equals_streamed_equals_chat(client: openai.OpenAI) -> None:
    whole = client.responses.create(**ASK, max_output_tokens=24)
    assert "Paris" in whole.output_text
    events = list(client.responses.create(**ASK, max_output_tokens=24, stream=True))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    assert text == whole.output_text == last.output_text
    chat = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": ASK["input"]}],
        temperature=0,
        max_tokens=24,
    )
    assert chat.choices[0].message.content == whole.output_text
    assert whole.usage == last.usage
    assert whole.usage.output_tokens == chat.usage.completion_tokens
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    assert whole.usage.total_tokens == chat.usage.total_tokens
    assert events[-1].type == "response.completed"
    assert whole.status == last.status == "completed"


def test_an_answer_that_the_limit_cuts_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASK, max_output_tokens=4)
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert {item.status for item in response.output} == {"incomplete"}
    assert response.usage.output_tokens == response.max_output_tokens == 4


def test_the_events_of_a_stream(client: openai.OpenAI) -> None:
    events = list(client.responses.create(**ASK, max_output_tokens=4, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    lives = [event.response for event in events if hasattr(event, "response")]
    assert len({response.id for response in lives}) == len({response.created_at for response in lives}) == 1
    assert lives[0].id.startswith("resp_")
    assert [response.status for response in lives] == ["in_progress", "in_progress", "incomplete"]
    assert (lives[0].output, lives[0].usage) == ([], None)


def test_the_frames_are_named_and_there_is_no_other_end(orchestrator: ServerProcess) -> None:
    body = {**ASK, "max_output_tokens": 3, "stream": True}
    answer = httpx.post(f"{orchestrator.url}/v1/responses", json=body, timeout=60)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = answer.text.removesuffix("\n\n").split("\n\n")
    for frame in frames:
        name, data = frame.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]
    becomes_idle(orchestrator)


def test_the_streaming_helper_of_the_client(client: openai.OpenAI) -> None:
    options = {name: value for name, value in ASK.items() if name != "input"}
    with client.responses.stream(input="Say hello.", **options) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                assert event.snapshot.endswith(event.delta)
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text


def test_a_conversation_goes_on_from_what_was_answered(client: openai.OpenAI) -> None:
    first = client.responses.create(**ASK, max_output_tokens=40)
    asked = [{"role": "user", "content": ASK["input"]}, *first.output]
    asked.append({"role": "user", "content": "And of Spain?"})
    second = client.responses.create(
        model="smollm2", input=asked, instructions="Be brief.", temperature=0, max_output_tokens=40
    )
    assert "Madrid" in second.output_text
    assert second.instructions == "Be brief."
    assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_text(client: openai.OpenAI, stream: bool) -> None:
    options = {**ASK, "max_output_tokens": 200, "extra_body": {"stop": [" Paris"]}}
    if stream:
        response = list(client.responses.create(**options, stream=True))[-1].response
    else:
        response = client.responses.create(**options)
    assert response.status == "completed"
    assert response.output_text
    assert "Paris" not in response.output_text


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_the_text(client: openai.OpenAI, stream: bool) -> None:
    options = {
        **ASK,
        "max_output_tokens": 6,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
    }
    if stream:
        response = list(client.responses.create(**options, stream=True))[-1].response
    else:
        response = client.responses.create(**options)
    [part] = response.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)


# ---- what cannot be had ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"background": True}, "background"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_refused_and_why(
    client: openai.OpenAI, options: dict[str, Any], param: str, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(**{**ASK, **options}, stream=stream)
    assert raised.value.param == param


def test_store_is_taken_and_nothing_is_stored(client: openai.OpenAI) -> None:
    response = client.responses.create(**ASK, max_output_tokens=1, store=True)
    assert response.store is False
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="not stored"):
            call(response.id)


# ---- reasoning and a tool call, by script ------------------------------------------------------------------


def test_reasoning_text_and_a_call_whole(scripted: Scripted) -> None:
    reasoning, content, call = parts_of_the_script()
    response = scripted.client.responses.create(**WALK)
    thought, message, made = response.output
    assert thought.content[0].text.strip() == reasoning.strip()
    assert message.content[0].text.strip() == content.strip()
    assert (made.type, made.name) == ("function_call", call["name"])
    assert json.loads(made.arguments) == call["arguments"]
    assert made.call_id.startswith("call_")
    assert response.status == "completed"
    assert 0 < response.usage.output_tokens_details.reasoning_tokens < response.usage.output_tokens
    # What was answered may be sent back with the result of the call.
    result = {"type": "function_call_output", "call_id": made.call_id, "output": "12C, dry"}
    asked = [{"role": "user", "content": WALK["input"]}, *response.output, result]
    again = scripted.client.responses.create(**{**WALK, "input": asked})
    assert again.usage.input_tokens > response.usage.input_tokens
    becomes_idle(scripted.orchestrator)


def test_reasoning_text_and_a_call_streamed(scripted: Scripted) -> None:
    reasoning, content, call = parts_of_the_script()
    events = list(scripted.client.responses.create(**WALK, stream=True))
    seen = {"reasoning_text": "", "output_text": "", "function_call_arguments": ""}
    for event in events:
        _, kind, *rest = event.type.split(".")
        if rest == ["delta"]:
            seen[kind] += event.delta
    assert seen["reasoning_text"].strip() == reasoning.strip()
    assert seen["output_text"].strip() == content.strip()
    assert json.loads(seen["function_call_arguments"]) == call["arguments"]
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert done.arguments == seen["function_call_arguments"]
    items = [event.item for event in events if event.type == "response.output_item.done"]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output == items
    assert [item.type for item in items] == ["reasoning", "message", "function_call"]
    assert last.response.usage.output_tokens_details.reasoning_tokens > 0
    becomes_idle(scripted.orchestrator)


def test_the_streaming_helper_builds_the_same_response(scripted: Scripted) -> None:

    with scripted.client.responses.stream(**WALK) as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert json.loads(final.output[2].arguments)["city"] == "Oslo"


def test_a_forced_call_is_refused_where_engines_cannot_enforce_it(scripted: Scripted) -> None:
    with pytest.raises(openai.BadRequestError, match="structured_outputs"):
        scripted.client.responses.create(**WALK, tool_choice="required")


def test_decode_killed_mid_stream_is_a_failed_response_and_an_error(qwen3_dir: Path, tmp_path: Path) -> None:
    with ExitStack() as exits:
        stack = Scripted(exits, qwen3_dir, tmp_path, interval_ms=100)
        received: list[Any] = []

        def read_and_kill() -> None:
            for event in stack.client.responses.create(**WALK, stream=True):
                received.append(event)
                if len(received) == 6:
                    stack.decode.kill(signal.SIGKILL)

        with pytest.raises(openai.APIError) as raised:
            read_and_kill()
        assert not isinstance(raised.value, openai.APIStatusError | openai.APIConnectionError)
        assert received[-1].type == "response.failed"
        assert received[-1].response.status == "failed"
        assert received[-1].response.error.code == "server_error"
        assert [event.sequence_number for event in received] == list(range(len(received)))
        becomes_idle(stack.orchestrator)


def test_two_requests_share_no_ids(scripted: Scripted) -> None:
    both = [scripted.client.responses.create(**WALK) for _ in range(2)]
    ids = [{item.id for item in response.output} | {response.id} for response in both]
    assert not ids[0] & ids[1]
