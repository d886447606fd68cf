"""Chats with images that engines are given as files: every leg has them, a client is told of the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.long_strings import LONG
from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT, GENERATE, HalfClose, Status

IDS = [7, 3, 4]
"""What the words of `ask` render to."""
PICTURES: dict[str, Any] = {
    "content_parts": [{"type": "image_url", "uuid": "aa", "url": "data:image/x;base64," + "A" * LONG}],
    "content_places": [{"offset": 1, "length": 1, "token_ids": [3, 3, 5]}],
}
WHOLE = [7, 3, 3, 5, 4]


async def ask(stack: Stack, **options: Any) -> Any:
    content = " ".join("x" * token for token in IDS)
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 3}
    return await stack.http.post(CHAT, json=body | options)


def legs(stack: Stack) -> list[Any]:
    """What every leg has for the prompt."""
    return [
        (leg["token_ids"], leg["features"], leg["content_parts"])
        for tier in (*stack.prefill, *stack.decode)
        for leg in tier.requests[GENERATE]
    ]


LEG = (IDS, None, PICTURES["content_parts"])


@pytest.mark.parametrize("known_images", ["whole", "named"])
@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
async def test_every_leg_has_the_files(launch: Launch, prefill: int, known_images: str) -> None:
    async with launch(prefill=prefill, settings={"policy": {"known_images": known_images}}) as stack:
        stack.render.pictures = PICTURES
        for _ in range(2):
            answer = await ask(stack, return_token_ids=True)
            assert answer.status_code == 200
            assert answer.json()["usage"]["prompt_tokens"] == len(WHOLE)
            assert answer.json()["prompt_token_ids"] == WHOLE
        assert legs(stack) == [LEG] * (2 + 2 * prefill)
        await stack.settled()


async def test_a_leg_that_is_tried_again_has_them_again(launch: Launch) -> None:
    async with launch(prefill=2, decode=2, settings={"selection": {"prefill": "round_robin"}}) as stack:
        stack.render.pictures = PICTURES
        stack.prefill[0].faults[GENERATE].append(Status(503))
        for tier in stack.decode:
            tier.faults[GENERATE].append(HalfClose())
        for _ in range(2):
            await ask(stack)
        assert len(legs(stack)) > 4
        assert all(leg == LEG for leg in legs(stack))
        await stack.settled()


async def test_no_encoder_is_asked(launch: Launch) -> None:
    async with launch(encode=1) as stack:
        stack.render.pictures = PICTURES
        assert (await ask(stack)).status_code == 200
        assert legs(stack) == [LEG] * 2
        assert not stack.encode[0].requests[GENERATE]
        await stack.settled()


async def test_a_file_that_is_only_named_reaches_no_engine(launch: Launch) -> None:
    async with launch() as stack:
        stack.render.pictures = PICTURES | {"content_parts": [PICTURES["content_parts"][0] | {"url": None}]}
        answer = await ask(stack, mm_payload="none")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "features")
        assert legs(stack) == []
        await stack.settled()


async def test_files_that_do_not_fit_the_prompt_are_renders_fault(launch: Launch) -> None:
    async with launch() as stack:
        stack.render.pictures = PICTURES | {"content_places": []}
        assert (await ask(stack)).status_code == 502
        assert legs(stack) == []
        await stack.settled()
