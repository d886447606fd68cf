"""Images that an engine has been given are named to it (policy.known_images), and sent again where it lacks
one; those that render has given are not asked of it again."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from orchestrator.settings import Settings
from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import CHAT, GENERATE, HalfClose, Slow, Status, Tier

ON: dict[str, Any] = {"policy": {"known_images": "named"}}
IDS = [7, 3, 7, 7, 4]
"""What the words of `ask` render to."""
DATA = {"aa": "cGl4ZWxz", "bb": "bW9yZQ==", "cc": "dGhpcmQh"}


def features(*names: str) -> dict[str, Any]:
    return {
        "mm_hashes": {"image": list(names)},
        "mm_placeholders": {"image": [{"offset": 2 * at, "length": 1} for at in range(len(names))]},
        "kwargs_data": {"image": [DATA[name] for name in names]},
        "mm_metadata": {"image": ["Z3JpZA=="] * len(names)},
    }


def named(*names: str, without: str) -> dict[str, Any]:
    """Of `features`, with the names alone of those in ``without``."""
    whole = features(*names)
    for field in ("kwargs_data", "mm_metadata"):
        each = zip(names, whole[field]["image"], strict=True)
        whole[field]["image"] = [None if name in without.split() else value for name, value in each]
    return whole


async def ask(stack: Stack, *names: str, **options: Any) -> list[Any]:
    """What each leg of a chat with these images had of them."""
    stack.render.features = features(*names)
    content = " ".join("x" * token for token in IDS)
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 3}
    # The scripted render tier takes no parts: that there are images has to be said elsewhere.
    response = await stack.http.post(CHAT, json=body | {"user": "has images"} | options)
    assert response.status_code == 200, response.text
    assert all(token in response.text for token in ("t100", "t101", "t102"))
    return sent(stack)


def sent(stack: Stack) -> list[Any]:
    shown = []
    for tier in (*stack.prefill, *stack.decode):
        shown += [leg["features"] for leg in tier.requests[GENERATE]]
        tier.requests[GENERATE].clear()
    return shown


def keep_images(*tiers: Tier) -> None:
    for tier in tiers:
        tier.images = {}


def counted(stack: Stack, name: str) -> dict[str, float]:
    """By the metric's one label."""
    samples = next(iter(getattr(stack.services.metrics, name).collect())).samples
    return {next(iter(s.labels.values())): s.value for s in samples if s.name.endswith("_total") and s.value}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
async def test_an_engine_is_sent_an_image_once(launch: Launch, prefill: int, stream: bool) -> None:
    async with launch(prefill=prefill, settings=ON) as stack:
        keep_images(*stack.prefill, *stack.decode)
        legs = 1 + prefill
        assert await ask(stack, "aa", stream=stream) == [features("aa")] * legs
        assert await ask(stack, "aa", stream=stream) == [named("aa", without="aa")] * legs
        assert await ask(stack, "aa", "bb", stream=stream) == [named("aa", "bb", without="aa")] * legs
        assert await ask(stack, "bb", "aa", stream=stream) == [named("bb", "aa", without="aa bb")] * legs
        assert counted(stack, "media_items") == {"whole": 2 * legs, "named": 4 * legs}
        assert counted(stack, "media_resends") == {}
        await stack.settled()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_an_engine_that_lacks_an_image_is_sent_it_again(
    launch: Launch, prefill: int, role: str, stream: bool
) -> None:
    attempts = {"prefill_attempts": 1, "decode_attempts": 1}
    settings = {"policy": ON["policy"] | attempts, "health": {"breaker_threshold": 1}}
    async with launch(prefill=prefill, settings=settings) as stack:
        keep_images(*stack.prefill, *stack.decode)
        await ask(stack, "aa", stream=stream)
        lacking = (stack.prefill or stack.decode)[0] if role == "prefill" else stack.decode[0]
        lacking.images = {}
        legs = await ask(stack, "aa", stream=stream)
        # Held KV is used once, so what decode lacked goes through prefill again.
        again = [named("aa", without="aa"), features("aa")]
        if not prefill:
            assert legs == again
        elif role == "prefill":
            assert legs == [*again, features("aa")]
        else:
            assert legs == again * 2
        hop = "decode" if lacking is stack.decode[0] else "prefill"
        assert counted(stack, "media_resends") == {hop: 1}
        assert counted(stack, "retries") == {}
        assert not any(pool.avoids(member) for pool in stack.services.pools for member in pool.members)
        # And it has them now.
        assert await ask(stack, "aa", stream=stream) == [named("aa", without="aa")] * (1 + prefill)
        await stack.settled()


async def test_a_fault_that_is_no_lack_of_images_is_one(launch: Launch) -> None:
    """Of what is sent again the second answer counts."""
    async with launch(prefill=0, settings=ON) as stack:
        keep_images(*stack.decode)
        await ask(stack, "aa")
        stack.decode[0].faults[GENERATE] += [Status(500)] * 5
        stack.render.features = features("aa")
        body = {"model": "m", "messages": [{"role": "user", "content": "x x x x x"}], "max_tokens": 3}
        assert (await stack.http.post(CHAT, json=body)).status_code == 502
        assert sent(stack)[:2] == [named("aa", without="aa"), features("aa")]
        assert counted(stack, "media_resends") == {"decode": 1}
        await stack.settled()


@pytest.mark.parametrize("fault", [HalfClose(), Status(503)], ids=["gone", "overloaded"])
async def test_after_an_error_an_engine_is_given_all_again(launch: Launch, fault: Any) -> None:
    async with launch(prefill=0, decode=1, settings=ON) as stack:
        keep_images(*stack.decode)
        await ask(stack, "aa")
        stack.decode[0].faults[GENERATE].append(fault)
        legs = await ask(stack, "aa")
        assert legs == [named("aa", without="aa"), features("aa")]
        assert counted(stack, "media_resends") == {}
        await stack.settled()


async def test_an_engine_that_was_away_is_given_all_again(launch: Launch) -> None:
    async with launch(prefill=0, settings=ON) as stack:
        keep_images(*stack.decode)
        await ask(stack, "aa")
        for healthy in (False, True):
            stack.decode[0].healthy = healthy
            await stack.services.check_health()
        assert await ask(stack, "aa") == [features("aa")]
        await stack.settled()


async def test_a_leg_from_before_an_engine_was_away_says_nothing_of_it(launch: Launch) -> None:
    async with launch(prefill=0, settings=ON) as stack:
        keep_images(*stack.decode)
        [engine], [member] = stack.decode, stack.services.decode_pool.members
        engine.hold.clear()
        asked = asyncio.create_task(ask(stack, "aa", stream=True))
        await until(lambda: bool(engine.requests[GENERATE]))
        member.died(0)
        engine.hold.set()
        assert await asked == [features("aa")]
        assert await ask(stack, "aa") == [features("aa")]
        assert await ask(stack, "aa") == [named("aa", without="aa")]
        await stack.settled()


async def test_each_engine_is_given_what_it_lacks(launch: Launch) -> None:
    settings = ON | {"selection": {"decode": "round_robin"}}
    async with launch(prefill=0, decode=2, settings=settings) as stack:
        keep_images(*stack.decode)
        legs = [leg for _ in range(4) for leg in await ask(stack, "aa")]
        assert legs == [features("aa")] * 2 + [named("aa", without="aa")] * 2
        await stack.settled()


async def test_what_is_believed_is_bounded(launch: Launch) -> None:
    """In bytes of the least recently used."""
    room = len(json.dumps(DATA["aa"])) + len(json.dumps(DATA["bb"]))
    async with launch(
        prefill=0, settings={"policy": ON["policy"] | {"engine_image_cache_bytes": room}}
    ) as stack:
        keep_images(*stack.decode)
        for name in ("aa", "bb", "cc"):
            assert await ask(stack, name) == [features(name)]
        assert await ask(stack, "bb") == [named("bb", without="bb")]
        assert await ask(stack, "aa") == [features("aa")]
        await stack.settled()


REPORTED = {"multimodal_config": {"mm_processor_cache_gb": 4, "mm_processor_cache_type": "shm"}}


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({}, {}),
        (ON | {"declared": {"engines": {"keeps_images": False}}}, {}),
        (ON, {"model_config": REPORTED}),
    ],
    ids=["not wanted", "declared", "reported"],
)
async def test_engines_that_keep_none_are_given_all(launch: Launch, settings: Any, facts: Any) -> None:
    async with launch(prefill=0, settings=settings) as stack:
        stack.decode[0].facts = facts
        for healthy in (False, True):
            stack.decode[0].healthy = healthy
            await stack.services.check_health()
        for _ in range(2):
            assert await ask(stack, "aa") == [features("aa")]
        await stack.settled()


async def test_images_that_a_client_may_have_named(launch: Launch) -> None:
    """Another image may come under the same name, and no other's name is taken."""
    async with launch(prefill=0, settings=ON) as stack:
        keep_images(*stack.decode)
        await ask(stack, "aa")
        stack.render.item_names = ""
        for _ in range(2):
            (leg,) = await ask(stack, "aa")
            assert leg["kwargs_data"] == features("aa")["kwargs_data"]
            (name,) = leg["mm_hashes"]["image"]
            assert name.startswith("named-")
        stack.render.item_names = "content"
        assert await ask(stack, "aa") == [named("aa", without="aa")]
        await stack.settled()


def test_features_of_clients_could_give_an_image_anothers_name() -> None:
    with pytest.raises(ValueError, match="known_images"):
        Settings.model_validate({"policy": ON["policy"] | {"client_features": True}})


LARGE = {name: "QUJD" * 40_000 + data for name, data in DATA.items()}
"""Are kept, as small ones are not worth it."""


async def test_render_is_not_asked_again_for_an_image(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.DATA", LARGE)
    async with launch(prefill=0, settings=ON) as stack:
        keep_images(*stack.decode)
        assert await ask(stack, "aa") == [features("aa")]
        assert await ask(stack, "aa", "bb") == [named("aa", "bb", without="aa")]
        # What is kept here is what an engine gets that has lost it.
        stack.decode[0].images = {}
        assert await ask(stack, "bb", "aa") == [named("bb", "aa", without="aa bb"), features("bb", "aa")]
        assert [set(known.split(",")) for known in stack.render.known_items] == [{""}, {"aa"}, {"aa", "bb"}]
        stack.render.item_names = ""
        (leg,) = await ask(stack, "aa")
        assert leg["kwargs_data"] == features("aa")["kwargs_data"]
        await stack.settled()


@pytest.mark.parametrize(("kept", "told"), [(2**20, "aa"), (0, "")], ids=["kept", "not kept"])
async def test_engines_that_are_sent_whole_images_get_those_that_are_kept(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, kept: int, told: str
) -> None:
    monkeypatch.setattr(f"{__name__}.DATA", LARGE)
    async with launch(prefill=1, settings={"limits": {"kept_image_bytes": kept}}) as stack:
        for _ in range(2):
            assert await ask(stack, "aa") == [features("aa")] * 2
        assert stack.render.known_items == ["", told]
        await stack.settled()


async def test_images_made_in_another_way_are_others(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Render tiers with other settings give the same image another form under the same hash."""
    async with launch(prefill=0, settings=ON) as stack:
        keep_images(*stack.decode)
        monkeypatch.setattr(f"{__name__}.DATA", LARGE)
        await ask(stack, "aa")
        stack.render.fingerprint = "other"
        monkeypatch.setattr(f"{__name__}.DATA", {"aa": LARGE["bb"]})
        stack.render.faults[f"{CHAT}/render"].append(Slow(0.05))
        assert await ask(stack, "aa") == [features("aa")]
        assert stack.render.known_items == ["", "aa", ""]
        first, second = (
            float(each["x-request-timeout"]) for each in stack.render.headers[f"{CHAT}/render"][1:]
        )
        assert second <= first - 0.04, "they have one time together"
        assert await ask(stack, "aa") == [named("aa", without="aa")]
        await stack.settled()


async def test_what_is_kept_is_bounded(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.DATA", LARGE)
    settings = ON | {"limits": {"kept_image_bytes": 2 * len(LARGE["aa"]) + 100}}
    async with launch(prefill=0, settings=settings) as stack:
        keep_images(*stack.decode)
        for name in ("aa", "bb", "aa", "cc", "aa"):
            await ask(stack, name)
        assert set(stack.render.known_items[-1].split(",")) == {"aa", "cc"}
        assert stack.services.items.bytes <= settings["limits"]["kept_image_bytes"]
        await stack.settled()
