"""Chats with images where there are encode members: each image goes to one, and the engine that computes the
prompt is told where to find what that has made of it; where none takes it, that engine gets it as before."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.orchestrator.conftest import Launch, Stack, until
from tests.orchestrator.faults import (
    ABORT,
    CHAT,
    GENERATE,
    Answer,
    Fault,
    Garbage,
    HalfClose,
    Slow,
    Stall,
    Status,
    Tier,
    serving,
)
from tests.support.mm_items import of_pixels
from tests.support.otlp import receiving

PIXELS, MORE, KEPT, KEPT_OF_MORE = (
    of_pixels(values) for values in ("pixels", "more", "kept", "kept of more")
)
FEATURES: dict[str, Any] = {
    "mm_hashes": {"image": ["aa", "bb", "aa"]},
    "mm_placeholders": {
        "image": [{"offset": 0, "length": 1}, {"offset": 2, "length": 2}, {"offset": 4, "length": 1}]
    },
    "kwargs_data": {"image": [PIXELS, MORE, PIXELS]},
    "mm_metadata": {"image": [KEPT, KEPT_OF_MORE, KEPT]},
}
IDS = [7, 3, 9, 9, 7]
"""What the words of `ask` render to."""
NAMED = FEATURES | {"kwargs_data": {"image": [None, None, None]}}
METADATA = {"policy": {"encoded_images": "metadata"}}


async def ask(stack: Stack, **options: Any) -> Any:
    content = " ".join("x" * token for token in IDS)
    body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 3}
    stack.render.features = stack.render.features or FEATURES
    return await stack.http.post(CHAT, json=body | options)


def legs(tiers: list[Any]) -> list[Any]:
    return [leg for tier in tiers for leg in tier.requests[GENERATE]]


def counted(stack: Stack) -> dict[str, float]:
    """Images by what became of them."""
    samples = next(iter(stack.services.metrics.encodes.collect())).samples
    return {s.labels["result"]: s.value for s in samples if s.name.endswith("_total") and s.value}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("prefill", [0, 1], ids=["colocated", "p/d"])
@pytest.mark.parametrize("settings", [{}, METADATA], ids=["all of it", "metadata"])
async def test_images_are_encoded_once_each_before_the_prompt_is_computed(
    launch: Launch, prefill: int, stream: bool, settings: dict[str, Any]
) -> None:
    async with launch(prefill=prefill, encode=1, settings=settings) as stack:
        assert (await ask(stack, n=2, stream=stream)).status_code == 200
        asked = sorted(legs(stack.encode), key=lambda leg: leg["features"]["mm_hashes"]["image"])
        assert [leg["features"] for leg in asked] == [
            {
                "mm_hashes": {"image": [name]},
                "mm_placeholders": {"image": [{"offset": 0, "length": length}]},
                "kwargs_data": {"image": [data]},
                "mm_metadata": {"image": [metadata]},
            }
            for name, length, data, metadata in (
                ("aa", 1, PIXELS, KEPT),
                ("bb", 2, MORE, KEPT_OF_MORE),
            )
        ]
        assert [leg["token_ids"] for leg in asked] == [[7], [9, 9]]
        assert len({leg["request_id"] for leg in asked}) == 2
        computing, others = (stack.prefill, stack.decode) if prefill else (stack.decode, [])
        assert len(legs(computing)) == 2, "one for each choice"
        for leg in legs(computing):
            assert {name: told["kept_by"] for name, told in leg["ec_transfer_params"].items()} == {
                "aa": "e0",
                "bb": "e0",
            }
            assert leg["features"] == (NAMED if settings else FEATURES)
        for leg in legs(others):
            assert leg["features"] == FEATURES, "it computes the prompt itself where KV does not arrive"
            assert "ec_transfer_params" not in leg
        assert counted(stack) == {"encoded": 2}
        await stack.settled()


async def test_a_prompt_without_images_does_not_wait_for_encoders(launch: Launch) -> None:
    async with launch(encode=1) as stack:
        stack.encode[0].hold.clear()
        body = {"model": "m", "messages": [{"role": "user", "content": "a b"}], "max_tokens": 3}
        assert (await stack.http.post(CHAT, json=body)).status_code == 200
        assert legs(stack.encode) == []
        await stack.settled()


async def test_a_decode_engine_that_computes_a_prompt_by_itself_is_told_of_no_encoder(launch: Launch) -> None:
    """Where there are prefill engines, encoders work for those."""
    async with launch(encode=1) as stack:
        assert (await ask(stack, max_tokens=1)).status_code == 200
        assert legs(stack.encode) == legs(stack.prefill) == []
        [leg] = legs(stack.decode)
        assert leg["features"] == FEATURES
        await stack.settled()


FAILURES: list[tuple[Fault, str]] = [
    (Status(503), "overloaded"),
    (Status(429), "overloaded"),
    (Status(502), "failed"),
    (Status(401), "failed"),
    (HalfClose(), "unreachable"),
    (Garbage(b"\xff"), "unusable"),
    (Answer({"ec_transfer_params": None}), "unusable"),
    (Answer({"ec_transfer_params": {"cc": {}}}), "unusable"),
    (Answer({"ec_transfer_params": {"aa": {}, "bb": {}}}), "unusable"),
    (Answer({"ec_transfer_params": {"aa": 1, "bb": 1}}), "unusable"),
    (Answer(finish_reason="abort"), "given_up"),
]


def failing(fault: Fault) -> Any:
    return lambda path, _body: fault if path == GENERATE else None


@pytest.mark.parametrize("fault", [fault for fault, _ in FAILURES], ids=str)
async def test_another_encoder_takes_what_one_cannot(launch: Launch, fault: Fault) -> None:
    settings = METADATA | {"health": {"breaker_threshold": 99}, "selection": {"encode": "round_robin"}}
    async with launch(encode=2, settings=settings) as stack:
        stack.encode[0].plan = failing(fault)
        for _ in range(4):
            assert (await ask(stack)).status_code == 200
        assert stack.encode[0].requests[GENERATE], "it was asked"
        assert counted(stack) == {"encoded": 8}
        assert [leg["features"] for leg in legs(stack.prefill)] == [NAMED] * 4
        await stack.settled()


LEFT: list[tuple[Fault, str]] = [
    *FAILURES,
    (Stall(), "timeout"),
    (Status(400), "refused"),
    (Status(404), "refused"),
]


@pytest.mark.parametrize(("fault", "counts_as"), LEFT, ids=str)
async def test_an_image_that_no_encoder_takes_is_left_to_the_engine(
    launch: Launch, fault: Fault, counts_as: str
) -> None:
    settings = METADATA | {"timeouts": {"encode": 0.2}, "admission": {"encode_per_request": 1}}
    async with launch(encode=1, settings=settings) as stack:
        [encoder] = stack.encode
        encoder.plan = lambda _path, body: fault if body["features"]["mm_hashes"]["image"] == ["bb"] else None
        assert (await ask(stack)).status_code == 200
        assert counted(stack) == {"encoded": 1, counts_as: 1}
        [leg] = legs(stack.prefill)
        assert leg["features"]["kwargs_data"] == {"image": [None, MORE, None]}
        assert leg["ec_transfer_params"].keys() == {"aa"}
        await stack.settled()


@pytest.mark.parametrize(
    ("fault", "status"),
    [(Status(503), 503), (HalfClose(), 503), (Answer({"ec_transfer_params": None}), 502), (Status(400), 400)],
    ids=str,
)
async def test_or_the_request_fails_where_the_settings_say_so(
    launch: Launch, fault: Fault, status: int
) -> None:
    async with launch(encode=1, settings={"policy": {"encode_failure": "fail"}}) as stack:
        stack.encode[0].plan = failing(fault)
        assert (await ask(stack, n=2)).status_code == status
        assert legs(stack.prefill) == []
        await stack.settled()
        await stack.encode[0].kill()
        await stack.services.check_health()
        assert (await stack.http.get("/ready")).json()["missing"] == ["encode"]
        assert (await ask(stack)).status_code == 503


@pytest.mark.parametrize("end", ["encoder", "prefill"])
async def test_what_ends_one_choice_ends_the_others_that_wait_for_the_same_images(
    launch: Launch, end: str
) -> None:
    async with launch(encode=1, settings={"policy": {"encode_failure": "fail"}}) as stack:
        stack.encode[0].hold.clear()
        with capture_logs() as logged:
            asked = asyncio.create_task(ask(stack, n=3))
            await until(lambda: len(legs(stack.encode)) == 2)
            await (stack.encode if end == "encoder" else stack.prefill)[0].kill()
            await stack.services.check_health()
            stack.encode[0].hold.set()
            assert (await asked).status_code == 503
            await stack.settled()
        assert not [line for line in logged if "crashed" in line["event"]]


async def test_an_image_that_ends_an_encoder_reaches_no_other_engine(launch: Launch) -> None:
    async with launch(encode=2) as stack:
        for tier in stack.encode:
            tier.plan = failing(Status(500))
        assert (await ask(stack)).status_code == 502
        assert len(legs(stack.encode)) <= 2, "an attempt for each image"
        assert legs(stack.prefill) == legs(stack.decode) == []
        await stack.settled()


async def test_dead_encoders_are_done_without(launch: Launch) -> None:
    async with launch(encode=1) as stack:
        await stack.encode[0].kill()
        for _ in range(2):
            assert (await ask(stack)).status_code == 200
        assert counted(stack).keys() <= {"unreachable", "no_member"}
        assert counted(stack)["no_member"] >= 2
        assert (await stack.http.get("/ready")).status_code == 200
        assert [leg["features"] for leg in legs(stack.prefill)] == [FEATURES] * 2
        await stack.encode[0].revive()
        await stack.services.check_health()
        assert (await ask(stack)).status_code == 200
        assert counted(stack)["encoded"] == 2
        await stack.settled()


async def test_the_same_image_goes_to_the_same_encoder(launch: Launch) -> None:
    async with launch(encode=3) as stack:
        for _ in range(4):
            await ask(stack)
        takers = [{tier.name for tier in stack.encode if name in tier.encoded} for name in ("aa", "bb")]
        assert [len(names) for names in takers] == [1, 1]
        await stack.settled()


async def test_no_more_images_are_with_encoders_than_may_be(launch: Launch) -> None:
    names = [f"{number:02}" for number in range(5)]
    features = {
        "mm_hashes": {"image": names},
        "mm_placeholders": {"image": [{"offset": n, "length": 1} for n in range(5)]},
        "kwargs_data": {"image": [PIXELS] * 5},
    }
    async with launch(encode=1, settings={"admission": {"encode_per_request": 2}}) as stack:
        stack.render.features = features
        [encoder] = stack.encode
        encoder.hold.clear()
        asked = asyncio.create_task(ask(stack))
        await until(lambda: len(legs(stack.encode)) == 2)
        gate = stack.services.admission.gates["encode"]
        assert (gate.active, gate.waiting) == (2, 0)
        encoder.hold.set()
        assert (await asked).status_code == 200
        assert sorted(encoder.encoded) == names
        [leg] = legs(stack.prefill)
        assert leg["features"] == features, "without metadata an image is sent as it is"
        await stack.settled()


async def test_images_wait_for_a_place_at_an_encoder_and_then_do_without(launch: Launch) -> None:
    settings = {"admission": {"encode_per_member": 1, "max_wait": 0.2}}
    async with launch(encode=1, settings=settings) as stack:
        [encoder] = stack.encode
        encoder.faults[GENERATE].append(Slow(0.4))
        assert (await ask(stack)).status_code == 200
        assert counted(stack) == {"encoded": 1, "busy": 1}
        await stack.settled()


@pytest.mark.parametrize("end", ["client", "deadline", "shutdown"])
async def test_whoever_gives_up_leaves_encoders_at_once(launch: Launch, end: str) -> None:
    async with launch(encode=1) as stack:
        [encoder] = stack.encode
        encoder.plan = failing(Stall())
        headers = {"X-Request-Timeout": "0.3"} if end == "deadline" else {}
        body = {"model": "m", "messages": [{"role": "user", "content": "a b c d e"}], "n": 2}
        stack.render.features = FEATURES
        asked = asyncio.create_task(stack.http.post(CHAT, json=body, headers=headers))
        await encoder.waiting.wait()
        if end == "client":
            asked.cancel()
        elif end == "shutdown":
            stack.services.end_exchanges()
        await until(lambda: len(encoder.broken_off) == len(legs(stack.encode)))
        await stack.settled()
        if end != "client":
            assert (await asked).status_code == (504 if end == "deadline" else 503)
        assert legs(stack.prefill) == []
        assert not stack.prefill[0].requests[ABORT]


async def test_what_is_tried_again_goes_without_encoders(launch: Launch) -> None:
    async with launch(encode=1, prefill=2, decode=2, settings=METADATA) as stack:
        for tier in stack.decode:
            tier.faults[GENERATE].append(HalfClose())
        for tier in stack.prefill:
            tier.faults[GENERATE].append(Status(503))
        await ask(stack)
        first, *again = sorted(legs(stack.prefill), key=lambda leg: leg["request_id"])
        assert first["features"] == NAMED
        assert again
        for leg in again:
            assert leg["features"] == FEATURES
            assert "ec_transfer_params" not in leg
        await stack.settled()


async def test_an_engine_that_cannot_find_what_an_encoder_has_made_is_not_the_end(launch: Launch) -> None:
    """A vLLM answers 500, and may end; the next one gets the images."""
    async with launch(encode=1, prefill=2, settings=METADATA) as stack:
        stack.encode[0].plan = lambda _path, body: Answer(
            {"ec_transfer_params": {body["features"]["mm_hashes"]["image"][0]: {}}}
        )
        assert (await ask(stack)).status_code == 200
        features = [leg["features"] for leg in legs(stack.prefill)]
        assert sorted(features, key=str) == sorted([NAMED, FEATURES], key=str)
        await stack.settled()


async def test_hashes_that_clients_choose_are_no_paths_and_no_contents(launch: Launch) -> None:
    """Encoders name files by them."""
    async with launch(encode=1) as stack:
        stack.render.item_names = "given"
        stack.render.features = FEATURES | {"mm_hashes": {"image": ["../../etc/x", "bb", "../../etc/x"]}}
        assert (await ask(stack)).status_code == 200
        [leg] = legs(stack.prefill)
        names = leg["features"]["mm_hashes"]["image"]
        assert names[0] == names[2]
        assert set(names) == set(leg["ec_transfer_params"]) == set(stack.encode[0].encoded)
        assert all(name.replace("-", "").isalnum() and len(name) > 64 for name in names)
        await stack.settled()


async def test_what_encoders_took_is_told(launch: Launch) -> None:
    async with launch(encode=1) as stack:
        await ask(stack)
        answer = await stack.http.post(
            CHAT,
            json={"model": "m", "messages": [{"role": "user", "content": "a b c d e"}]},
            headers={"X-PD-Timing": "1", "X-PD-Explain": "1"},
        )
        assert answer.json()["pd_timing"]["encode_ms"] > 0
        assert '"role":"encode"' in answer.headers["x-pd-decisions"]
        metrics = (await stack.http.get("/metrics")).text
        assert 'pd_hop_seconds_count{hop="encode"} 2.0' in metrics
        assert 'pd_encoded_images_total{result="encoded"} 4.0' in metrics
        status = (await stack.http.get("/status")).json()
        assert [member["url"] for member in status["pools"]["encode"]] == [stack.encode[0].url]
        await stack.settled()


async def test_each_attempt_is_a_span_that_its_encoder_is_told(launch: Launch) -> None:
    async with receiving() as receiver:
        async with launch(encode=1, settings={"tracing": {"endpoint": receiver.url}}) as stack:
            [encoder] = stack.encode
            encoder.faults[GENERATE].append(Status(503))
            assert (await ask(stack)).status_code == 200
            await stack.settled()
            told = {headers["traceparent"].split("-")[2] for headers in encoder.headers[GENERATE]}
        spans = receiver.named("encode")
        assert {span.id for span in spans} == told
        assert sorted(span.failed for span in spans) == [False, False, True]
        [root] = receiver.named(f"POST {CHAT}")
        assert {span.parent for span in spans} == {root.id}


FOLLOWED = {"health": {"interval": 0.02}, "selection": {"prefill": "round_robin"}}


def write(path: Path, **roles: list[Tier]) -> None:
    """A file of members."""
    named = {
        role: [{"url": tier.url, "generation": tier.generation} for tier in tiers]
        for role, tiers in roles.items()
    }
    path.with_suffix(".new").write_text(json.dumps(named))
    path.with_suffix(".new").replace(path)


async def test_encoders_come_and_go(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "members.json"
    write(path)
    source = {"membership": {"file": str(path), "file_interval": 0.01}}
    async with serving(Tier("late")) as encoder, launch(settings=FOLLOWED | source) as stack:
        encoder.encodes = True
        assert (await ask(stack)).status_code == 200
        assert counted(stack) == {}
        write(path, encode=[encoder])
        await until(lambda: stack.services.encode_pool.ready)
        assert (await ask(stack)).status_code == 200
        assert counted(stack) == {"encoded": 2}
        write(path)
        await until(lambda: not stack.services.encode_pool)
        assert (await ask(stack)).status_code == 200
        assert counted(stack) == {"encoded": 2, "no_member": 2}
        await stack.settled()


async def test_encoders_work_for_engines_of_their_generation(launch: Launch, tmp_path: Path) -> None:
    """The same name, other weights: what one has made is another picture to the other."""
    path = tmp_path / "members.json"
    write(path)
    source = {"membership": {"file": str(path), "file_interval": 0.01}}
    engines = {name: Tier(name) for name in ("pa", "pb", "da", "db", "eb", "ec")}
    async with contextlib.AsyncExitStack() as exits:
        for tier in engines.values():
            await exits.enter_async_context(serving(tier))
            tier.generation, tier.encodes = tier.name[1], tier.name[0] == "e"
        settings = FOLLOWED | source
        stack = await exits.enter_async_context(launch(prefill=0, decode=0, settings=settings))
        by_role = {"prefill": "p", "decode": "d", "encode": "e"}
        write(
            path, **{role: [t for t in engines.values() if t.name[0] == of] for role, of in by_role.items()}
        )
        await until(lambda: all(pool.ready for pool in stack.services.pools))
        await until(lambda: all(m.admitted for pool in stack.services.pools for m in pool.members))
        for n in (1, 2) * 3:
            assert (await ask(stack, n=n)).status_code == 200
        assert legs([engines["pa"], engines["ec"]]) == []
        assert len(legs([engines["pb"]])) == 9
        assert counted(stack) == {"encoded": 12}
        write(path, prefill=[engines["pa"]], decode=[engines["da"]], encode=[engines["eb"], engines["ec"]])
        await until(lambda: len(stack.services.prefill_pool.members) == 1)
        assert (await ask(stack)).status_code == 200
        assert counted(stack) == {"encoded": 12, "no_member": 2}
        await stack.settled()


async def test_images_of_clients_of_token_ids_are_encoded_too(launch: Launch) -> None:
    settings = {"policy": {"encoded_images": "metadata", "client_features": True}}
    async with launch(encode=1, settings=settings) as stack:
        asked = {"token_ids": IDS, "sampling_params": {"max_tokens": 3}, "features": FEATURES}
        theirs = {"ec_transfer_params": {"aa": {"kept_by": "elsewhere"}}, "return_token_ids": True}
        answer = await stack.http.post(GENERATE, json=asked | theirs)
        assert answer.status_code == 200
        assert answer.json()["mm_placeholders"] == FEATURES["mm_placeholders"]
        assert answer.json()["ec_transfer_params"] is None
        [leg] = legs(stack.prefill)
        assert {told["kept_by"] for told in leg["ec_transfer_params"].values()} == {"e0"}
        names = leg["features"]["mm_hashes"]
        assert set(names["image"]) == set(leg["ec_transfer_params"])
        assert leg["features"] == NAMED | {"mm_hashes": names}
        await stack.settled()
