"""The images of a request, fetched, decoded and processed before its prompt is written.

Files are fetched on the event loop; all else is done by a pool of its own, so that a request without images
waits for none. An image that several requests bring at once is processed once. What is held in memory is
counted: files from before they are fetched, the rest from when their headers have told how large they are,
until the reply is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from render_tier.model import ModelLoadError
from render_tier.multimodal.addresses import networks
from render_tier.multimodal.decoding import ImageTooLarge, UnreadableImage
from render_tier.multimodal.item import ImageRefused
from render_tier.multimodal.prepared import LoadedImage, PreparedImage
from render_tier.multimodal.remote import FetchFailed, RemoteImages, RemoteRules
from render_tier.multimodal.sources import SourceRefused, SourceRules, is_remote, read_local
from render_tier.multimodal.vision import PromptImage, Vision
from render_tier.protocol.errors import ApiError, BadRequest
from render_tier.protocol.validation import invalid
from render_tier.rendering.image_parts import ImagePart
from render_tier.server.memory_budget import MemoryBudget
from render_tier.server.pools import WorkPool
from render_tier.settings import Settings

Result = TypeVar("Result")
DEFAULT_LIMIT = 999
"""Images of a prompt, as in vLLM."""


class RequestImages:
    """One request's images, and the memory that it holds for them."""

    def __init__(self) -> None:
        self.images: list[PromptImage] = []
        self._held: list[tuple[MemoryBudget, int]] = []

    async def take(self, budget: MemoryBudget, amount: int) -> None:
        """Raises Overloaded."""
        self._held.append((budget, await budget.take(amount)))

    def release(self) -> None:
        while self._held:
            budget, amount = self._held.pop()
            budget.give_back(amount)


@dataclass(frozen=True)
class ServedImages:
    """What is read once, before the process serves."""

    vision: Vision
    local: SourceRules
    remote: RemoteRules


class ImageIntake:
    def __init__(self, served: ServedImages, settings: Settings, pool: WorkPool) -> None:
        self._preparation = served.vision.preparation
        self._pool = pool
        self._limit = settings.limit_mm_per_prompt.get("image", DEFAULT_LIMIT)
        self._local = served.local
        self._remote = RemoteImages(served.remote)
        self.files = MemoryBudget(settings.image_file_memory_bytes, max_wait=settings.max_queue_seconds)
        self.work = MemoryBudget(settings.image_work_memory_bytes, max_wait=settings.max_queue_seconds)
        self._flights: dict[bytes, asyncio.Task[PreparedImage]] = {}

    async def close(self) -> None:
        await self._remote.close()

    async def prepare(self, parts: Sequence[ImagePart]) -> RequestImages:
        """To be released by the caller. Raises ApiError that names the part at fault."""
        if len(parts) > self._limit:
            raise invalid(
                f"At most {self._limit} image(s) may be provided in one prompt. "
                "Set `--limit-mm-per-prompt` to change this limit.",
                "image",
            )
        request = RequestImages()
        try:
            await request.take(self.files, sum(map(self._file_bytes, parts)))
            loaded = await _each(parts, self._load)
            await request.take(self.work, sum(map(_work_bytes, loaded)))
            prepared = await _each(parts, self._prepared, loaded)
        except BaseException:
            request.release()
            raise
        request.images = [PromptImage(image, part.uuid) for image, part in zip(prepared, parts, strict=True)]
        return request

    def _file_bytes(self, part: ImagePart) -> int:
        return len(part.url) * 3 // 4 if part.url[:5].lower() == "data:" else self._local.max_bytes

    async def _load(self, part: ImagePart) -> LoadedImage | PreparedImage:
        fetched = await self._remote.fetch(part.url) if is_remote(part.url) else None
        return await self._pool.run(partial(self._opened, part.url, fetched))

    def _opened(self, url: str, fetched: bytes | None) -> LoadedImage | PreparedImage:
        data = read_local(url, self._local) if fetched is None else fetched
        key = self._preparation.key(data)
        return self._preparation.cache.get(key) or self._preparation.load(key, data)

    async def _prepared(self, part: ImagePart, loaded: LoadedImage | PreparedImage) -> PreparedImage:
        if isinstance(loaded, PreparedImage):
            return loaded
        flight = self._flights.get(loaded.key)
        if flight is None:
            work = self._pool.run(partial(self._preparation.prepare, loaded))
            flight = self._flights[loaded.key] = asyncio.create_task(work)
            flight.add_done_callback(partial(self._landed, loaded.key))
        # Others may wait for it when this request is gone.
        return await asyncio.shield(flight)

    def _landed(self, key: bytes, flight: asyncio.Task[PreparedImage]) -> None:
        del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # seen, even where nobody waits any more


async def _each(
    parts: Sequence[ImagePart], work: Callable[..., Awaitable[Result]], *arguments: Sequence[Any]
) -> list[Result]:
    """``work`` for every part at once. Raises the first fault as an ApiError, and cancels the others."""

    async def one(part: ImagePart, *rest: Any) -> Result:
        try:
            return await work(part, *rest)
        except (SourceRefused, UnreadableImage, ImageTooLarge, ImageRefused) as error:
            raise BadRequest(f"{part.param}: {error}", param=part.param) from None
        except FetchFailed as error:
            raise ApiError(
                f"{part.param}: {error}", param=part.param, status=422, type="UnprocessableEntityError"
            ) from None

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(one(part, *rest)) for part, *rest in zip(parts, *arguments, strict=True)
            ]
    except BaseExceptionGroup as faults:
        raise faults.exceptions[0] from None
    return [task.result() for task in tasks]


def _work_bytes(image: LoadedImage | PreparedImage) -> int:
    return image.item.size if isinstance(image, PreparedImage) else image.working_bytes


def served_images(vision: Vision, settings: Settings) -> ServedImages:
    """Raises ModelLoadError for a setting that names what there is not."""
    return ServedImages(vision, _local_rules(settings), _remote_rules(settings))


def _local_rules(settings: Settings) -> SourceRules:
    directory = None
    if settings.allowed_local_media_path:
        directory = Path(settings.allowed_local_media_path).resolve()
        if not directory.is_dir():
            raise ModelLoadError(f"--allowed-local-media-path: {directory} is not a directory")
    return SourceRules(settings.max_image_bytes, directory)


def _remote_rules(settings: Settings) -> RemoteRules:
    try:
        allowed = networks(settings.allowed_media_networks)
    except ValueError as error:
        raise ModelLoadError(f"--allowed-media-networks: {error}") from None
    return RemoteRules(
        max_bytes=settings.max_image_bytes,
        seconds=settings.image_fetch_seconds,
        max_redirects=settings.max_image_redirects,
        domains=frozenset(settings.allowed_media_domains),
        networks=allowed,
    )
