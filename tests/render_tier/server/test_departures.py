"""Clients that hang up while their images wait: a server on a real socket does no more for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from render_tier.multimodal.prepared import ImagePreparation
from render_tier.server.departures import ClientGone, while_connected
from render_tier.server.image_intake import ImageIntake
from render_tier.server.service import Service
from render_tier.settings import Settings
from tests.support import vision_models
from tests.support.image_corpus import PATH, chat, part, text
from tests.support.images import file, picture
from tests.support.render_app import load_service, settings_for
from tests.support.session_client import Tier, served

Json = dict[str, Any]
IMAGES = [file(picture(64, 48, seed=seed)) for seed in range(6)]
ONE_ITEM = 30_000
"""Bytes in which one of them has room, and not two."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, qwen3_dir: Path) -> Settings:
    directory = tmp_path_factory.mktemp("departures") / "qwen2_5_vl"
    vision_models.lay_out("qwen2_5_vl", qwen3_dir.parent, directory)
    return settings_for(
        directory,
        image_workers=1,
        image_cache_bytes=0,
        inline_body_bytes=1 << 20,  # so that what waits for a thread is images
        allowed_media_networks=("127.0.0.0/8",),
    )


@pytest.fixture(scope="module")
def service(settings: Settings) -> Service:
    return load_service(settings)


class Gate:
    """Before one step of every image's way: whoever comes is counted, and goes on once it is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
        self.came = 0
        self._open = threading.Event()
        taken: Callable[..., Any] = getattr(ImagePreparation, step)

        def held(*arguments: Any) -> Any:
            self.came += 1
            self._open.wait(60)
            return taken(*arguments)

        monkeypatch.setattr(ImagePreparation, step, held)

    async def open(self) -> None:
        await asyncio.to_thread(self._open.set)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.005)


class Clients:
    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        assert tier.app.runtime.images is not None
        self.images: ImageIntake = tier.app.runtime.images

    def ask(self, *images: Json) -> asyncio.Task[int]:
        return asyncio.create_task(self.status(PATH, chat(*images, text("?"))))

    async def status(self, path: str, body: Json) -> int:
        async with self.tier.http.post(self.tier.url + path, json=body) as answer:
            await answer.read()
            return answer.status

    async def leave(self, *asking: asyncio.Task[int]) -> None:
        """Their connections are closed, and the server has seen it."""
        before = self.tier.app.runtime.in_flight
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)
        await until(lambda: self.tier.app.runtime.in_flight == before - len(asking))

    @property
    def pending(self) -> int:
        return self.tier.app.runtime.pending

    @property
    def processed(self) -> float:
        counted = self.tier.app.runtime.metrics.images.labels("processed")
        return float(next(iter(counted.collect())).samples[0].value)

    @property
    def memory(self) -> int:
        return self.images.files.held + self.images.items.held


@pytest.fixture
def serve(settings: Settings, service: Service) -> Any:
    @asynccontextmanager
    async def start(**changes: Any) -> AsyncIterator[Clients]:
        async with served(settings.model_copy(update=changes), service) as tier:
            clients = Clients(tier)
            yield clients
            await until(lambda: tier.app.runtime.in_flight == 0)
            assert (clients.memory, clients.pending) == (0, 0)

    return start


async def test_images_that_wait_to_be_read(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Gate(monkeypatch, "load")
    async with serve() as clients:
        stays = clients.ask(part(IMAGES[0]))
        await until(lambda: reading.came == 1)
        leaving = [clients.ask(part(image)) for image in IMAGES[1:]]
        await until(lambda: clients.pending == len(IMAGES))
        held = clients.memory
        await clients.leave(*leaving)
        assert clients.pending == 1
        assert 0 < clients.memory < held / 2
        await reading.open()
        assert await stays == 200
        assert (reading.came, clients.processed) == (1, 1)


async def test_images_that_wait_for_memory(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, processing = Gate(monkeypatch, "load"), Gate(monkeypatch, "prepare")
    await reading.open()
    async with serve(image_workers=2, image_item_memory_bytes=ONE_ITEM) as clients:
        stays = clients.ask(part(IMAGES[0]))
        await until(lambda: processing.came == 1)
        held = clients.memory
        leaving = clients.ask(part(IMAGES[1]))
        await until(lambda: reading.came == 2 and clients.pending == 1)
        assert clients.memory > held
        await clients.leave(leaving)
        assert clients.memory == held
        await processing.open()
        assert await stays == 200
        assert (processing.came, clients.processed) == (1, 1)


async def test_images_that_are_fetched(serve: Any) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        closed.set()
        writer.close()

    async with serve() as clients, await asyncio.start_server(never_answer, "127.0.0.1", 0) as origin:
        url = f"http://127.0.0.1:{origin.sockets[0].getsockname()[1]}/a.png"
        asking = clients.ask({"type": "image_url", "image_url": {"url": url}})
        await asked.wait()
        assert clients.memory > 0
        await clients.leave(asking)
        await closed.wait()
        assert clients.memory == 0


async def test_of_images_that_wait_to_be_processed_the_one_in_a_thread_is_ended(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is held until then."""
    processing = Gate(monkeypatch, "prepare")
    async with serve() as clients:
        leaving = clients.ask(*map(part, IMAGES))
        await until(lambda: processing.came == 1 and clients.pending > 1)
        leaving.cancel()
        await until(lambda: clients.pending == 1)
        assert clients.memory > 0
        await processing.open()
        await until(lambda: clients.memory == 0)
        assert (processing.came, clients.processed) == (1, 0)


@pytest.mark.parametrize("first_leaves", [True, False])
async def test_an_image_that_somebody_else_waits_for(
    serve: Any, monkeypatch: pytest.MonkeyPatch, first_leaves: bool
) -> None:
    processing = Gate(monkeypatch, "prepare")
    async with serve(image_workers=2) as clients:
        asking = [clients.ask(part(IMAGES[0]))]
        await until(lambda: processing.came == 1)
        held = clients.memory
        asking.append(clients.ask(part(IMAGES[0])))
        await until(lambda: clients.memory == 2 * held and clients.pending == 1)
        leaves, stays = asking if first_leaves else reversed(asking)
        await clients.leave(leaves)
        await processing.open()
        assert await stays == 200
        assert (processing.came, clients.processed) == (1, 1)


async def test_counting_is_given_up_too(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Gate(monkeypatch, "load")
    async with serve() as clients:
        stays = clients.ask(part(IMAGES[0]))
        await until(lambda: reading.came == 1)
        counting = asyncio.create_task(clients.status("/tokenize", chat(part(IMAGES[1]))))
        await until(lambda: clients.pending == 2)
        await clients.leave(counting)
        await reading.open()
        assert await stays == 200
        assert reading.came == 1


class Line:
    """What a server tells of a client."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> Json:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def test_what_is_cancelled_otherwise_stays_so() -> None:
    async def work() -> None:
        async with while_connected(Line().receive):
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


async def test_who_leaves_ends_the_work_but_not_its_task() -> None:
    line, ended = Line(), []

    async def work() -> str:
        try:
            async with while_connected(line.receive):
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.append(True)
        except ClientGone:
            await asyncio.sleep(0)
            return "gone"
        return "stayed"

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    line.left.set()
    assert await working == "gone"
    assert ended


async def test_what_is_over_is_not_watched_any_more() -> None:
    line = Line()
    async with while_connected(line.receive):
        pass
    line.left.set()
    for _ in range(3):
        await asyncio.sleep(0)
