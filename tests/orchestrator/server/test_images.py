"""Chats with images: what render says of them reaches both engines as it is, or none."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from tests.orchestrator.conftest import Launch, Stack
from tests.orchestrator.faults import CHAT, GENERATE, HalfClose, Status
from tests.support.mm_items import grid, item, of_pixels

PIXELS, MORE, KEPT = of_pixels("pixels"), of_pixels("more"), of_pixels("kept")
FEATURES: dict[str, Any] = {
    "mm_hashes": {"image": ["aa", "bb"]},
    "mm_placeholders": {"image": [{"offset": 0, "length": 1}, {"offset": 2, "length": 2}]},
    "kwargs_data": {"image": [PIXELS, MORE]},
    "mm_metadata": {"image": [KEPT, None]},
}
IDS = [7, 3, 7, 7, 4]
"""What the words of `ask` render to."""


async def ask(stack: Stack, **options: Any) -> Any:
    content = " ".join("x" * token for token in IDS)
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 3}
    return await stack.http.post(CHAT, json=body | options)


def shown(stack: Stack) -> list[Any]:
    """The features of every leg that any engine got."""
    return [leg["features"] for tier in (*stack.prefill, *stack.decode) for leg in tier.requests[GENERATE]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
async def test_every_leg_has_what_render_said(launch: Launch, prefill: int, stream: bool) -> None:
    async with launch(prefill=prefill) as stack:
        stack.render.features = FEATURES
        assert (await ask(stack, n=2, stream=stream)).status_code == 200
        assert shown(stack) == [FEATURES] * (2 + 2 * prefill)
        await stack.settled()


async def test_a_leg_that_is_tried_again_has_the_images_again(launch: Launch) -> None:
    async with launch(prefill=2, decode=2, settings={"selection": {"prefill": "round_robin"}}) as stack:
        stack.render.features = FEATURES
        stack.prefill[0].faults[GENERATE].append(Status(503))
        for tier in stack.decode:
            tier.faults[GENERATE].append(HalfClose())
        for _ in range(2):
            await ask(stack)
        assert len(shown(stack)) > 4
        assert all(features == FEATURES for features in shown(stack))
        await stack.settled()


@pytest.mark.parametrize("data", [None, {"image": [PIXELS, None]}], ids=["none", "of one"])
async def test_images_without_their_data_reach_no_engine(launch: Launch, data: Any) -> None:
    """vLLM takes what is only named from its cache, and answers a miss like a fault of its own."""
    async with launch(settings={"policy": {"client_features": True}}) as stack:
        named = FEATURES | {"kwargs_data": data}
        stack.render.features = named
        asked = {"token_ids": IDS, "sampling_params": {"max_tokens": 3}, "features": named}
        for response in (await ask(stack, mm_payload="none"), await stack.http.post(GENERATE, json=asked)):
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "features"
            assert "mm_payload" in response.json()["error"]["message"]
        assert shown(stack) == []
        await stack.settled()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("kwargs_data", "\x010"),
        ("kwargs_data", "\x01" + "9" * 5000),
        ("mm_metadata", base64.b64encode(b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0").decode()),
    ],
    ids=["what stands for long strings inside", "and has many digits", "deeper than can be read"],
)
async def test_strange_features_of_clients_are_no_fault_of_ours(
    launch: Launch, part: str, value: str
) -> None:
    async with launch() as stack:
        features = FEATURES | {part: {"image": [value, value]}}
        asked = {"token_ids": IDS, "sampling_params": {"max_tokens": 3}, "features": features}
        answer = await stack.http.post(GENERATE, json=asked)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "features")
        await stack.settled()


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("kwargs_data", "@@@@"),
        ("mm_metadata", 1),
        ("mm_metadata", item(image_grid_thw=grid(1, 1, 8))),
        ("mm_placeholders", {"offset": 2, "length": 2, "is_embed": [True]}),
    ],
)
@pytest.mark.parametrize("options", [{}, {"stream": True}, {"sampling_params": {"max_tokens": 3, "n": 2}}])
async def test_features_of_clients_that_no_engine_can_read_reach_none(
    launch: Launch, part: str, value: Any, options: dict[str, Any]
) -> None:
    async with launch(settings={"policy": {"client_features": True}}) as stack:
        features = FEATURES | {part: {"image": [FEATURES[part]["image"][0], value]}}
        asked = {"token_ids": IDS, "sampling_params": {"max_tokens": 3}, "features": features}
        answer = await stack.http.post(GENERATE, json=asked | options)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, 400, "features")
        assert error["type"] == "BadRequestError"
        assert part in error["message"]
        assert shown(stack) == []
        await stack.settled()


async def test_features_that_do_not_fit_the_prompt_are_renders_fault(launch: Launch) -> None:
    async with launch() as stack:
        stack.render.features = FEATURES | {"mm_placeholders": {"image": [{"offset": 4, "length": 2}]}}
        assert (await ask(stack)).status_code == 502
        assert shown(stack) == []
        await stack.settled()


async def test_a_name_that_a_client_gives_is_no_content_of_anothers_image(launch: Launch) -> None:
    """An engine would show the first that it was given of one hash for all others."""
    async with launch(prefill=0, settings={"policy": {"client_features": True}}) as stack:
        stack.render.features = FEATURES
        await ask(stack)
        stack.render.item_names = "given"
        await ask(stack)
        asked = {"token_ids": IDS, "sampling_params": {"max_tokens": 3}, "features": FEATURES}
        assert (await stack.http.post(GENERATE, json=asked)).status_code == 200
        contents, *given = (set(features["mm_hashes"]["image"]) for features in shown(stack))
        assert contents == set(FEATURES["mm_hashes"]["image"])
        assert [len(names) for names in given] == [len(contents)] * 2
        assert not contents & set().union(*given)
        await stack.settled()


@pytest.mark.parametrize("taken", [False, True])
async def test_features_of_clients_are_taken_where_the_settings_say_so(launch: Launch, taken: bool) -> None:
    async with launch(settings={"policy": {"client_features": taken}}) as stack:
        asked = {"token_ids": IDS, "sampling_params": {"max_tokens": 3}, "features": FEATURES}
        response = await stack.http.post(GENERATE, json=asked | {"return_token_ids": True})
        if taken:
            assert response.json()["mm_placeholders"] == FEATURES["mm_placeholders"]
            [leg, other] = shown(stack)
            assert leg == other == FEATURES | {"mm_hashes": leg["mm_hashes"]}
        else:
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "features"
            assert shown(stack) == []
        await stack.settled()


async def test_an_image_of_many_bytes_passes(launch: Launch) -> None:
    """A picture of 3840 by 2160 is about 20 MB on its way to an engine."""
    async with launch() as stack:
        large = FEATURES | {"kwargs_data": {"image": ["A" * (20 << 20), PIXELS]}}
        stack.render.features = large
        assert (await ask(stack)).status_code == 200
        assert json.dumps(shown(stack)) == json.dumps([large, large])
        await stack.settled()


async def test_images_under_way_are_bounded(launch: Launch) -> None:
    size = len(json.dumps(FEATURES))
    async with launch(settings={"limits": {"features_bytes": size * 3 // 2}}) as stack:
        stack.render.features = FEATURES
        stack.decode[0].hold.clear()
        first = asyncio.create_task(ask(stack))
        await stack.decode[0].waiting.wait()
        second = await ask(stack)
        assert (second.status_code, second.json()["error"]["message"]) == (
            503,
            "too many images are under way",
        )
        assert second.headers["retry-after"]
        stack.decode[0].hold.set()
        assert (await first).status_code == 200
        assert (await ask(stack)).status_code == 200
        stack.render.features = FEATURES | {"kwargs_data": {"image": ["A" * size, PIXELS]}}
        assert (await ask(stack)).status_code == 413
        await stack.settled()


async def test_an_image_that_is_too_large_when_rendered_is_the_clients_matter(launch: Launch) -> None:
    """Not the render tier's: another one would make as much of it, and none of them has failed."""
    settings = {"limits": {"reply_bytes": 4096}, "health": {"breaker_threshold": 1}}
    async with launch(render=2, settings=settings) as stack:
        for render in stack.renders:
            render.features = FEATURES | {"kwargs_data": {"image": ["A" * 4096, PIXELS]}}
        response = await ask(stack)
        assert response.status_code == 413
        assert "4096 bytes when it is rendered" in response.json()["error"]["message"]
        assert sum(len(render.requests[f"{CHAT}/render"]) for render in stack.renders) == 1
        assert not any(map(stack.services.render_pool.avoids, stack.services.render_pool.members))
        await stack.settled()
