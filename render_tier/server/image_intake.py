"""The images and videos of a request, fetched, decoded and processed before its prompt is written.

Files are fetched on the event loop; all else is done by a pool of its own, so that a request without images
waits for none. An image that several requests bring at once is processed once. What requests hold in memory
is counted: files from before they are fetched, items from when headers have told how large they will be,
until the reply is sent. What an image takes while it is processed is bounded by the pool's threads.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from render_tier.media_limits import DEFAULT_LIMIT
from render_tier.multimodal.decoding import ImageTooLarge, UnreadableImage
from render_tier.multimodal.families import Replacement
from render_tier.multimodal.hashing import owned_hash
from render_tier.multimodal.item import ImageRefused
from render_tier.multimodal.names import ImageNames
from render_tier.multimodal.prepared import ImagePreparation, LoadedImage, Prepared
from render_tier.multimodal.remote import FetchFailed, RemoteImages
from render_tier.multimodal.sources import (
    SourceRefused,
    is_data,
    is_remote,
    listed_frames,
    read_local,
)
from render_tier.multimodal.videos.opening import VideoSource
from render_tier.multimodal.videos.prepared import LoadedVideo
from render_tier.multimodal.vision import PromptImage
from render_tier.protocol.errors import ApiError, BadRequest, ImageRequired
from render_tier.protocol.validation import invalid
from render_tier.rendering.image_parts import ImagePart, Kind
from render_tier.rendering.requested_images import RequestedImages
from render_tier.server.memory_budget import MemoryBudget
from render_tier.server.metrics import Metrics
from render_tier.server.pools import WorkPool
from render_tier.server.request_images import RequestImages
from render_tier.server.served_images import ServedImages
from render_tier.server.shared_work import SharedWork
from render_tier.settings import Settings

Result = TypeVar("Result")
Opened = LoadedImage | LoadedVideo | Prepared
Keyed = tuple[bytes, Opened]
"""An image, and the key under which it is, or will be, kept."""


class ImageIntake:
    def __init__(
        self, served: ServedImages, settings: Settings, pools: Mapping[Kind, WorkPool], metrics: Metrics
    ) -> None:
        """``pools``: of the kinds of media that are taken."""
        self._pools = pools
        self._videos = served.vision.videos
        self._limits = settings.limit_mm_per_prompt
        self._local = served.local
        self._remote = {kind: RemoteImages(rules) for kind, rules in served.remote.items()}
        self._names = ImageNames(settings.image_names)
        self.files = MemoryBudget(settings.image_file_memory_bytes, max_wait=settings.max_queue_seconds)
        self.items = MemoryBudget(settings.image_item_memory_bytes, max_wait=settings.max_queue_seconds)
        self._jobs_of_a_request = 1 + max(settings.image_workers, settings.video_workers)
        """A thread that is done with one finds the next."""
        self._processing = SharedWork[bytes, Prepared]()
        self._kept, self._processed, self._refused = (
            metrics.images.labels(result) for result in ("kept", "processed", "refused")
        )

        def show() -> None:
            metrics.image_cache_bytes.set(served.vision.preparation.cache.bytes)
            metrics.image_memory_bytes.set(self.files.held + self.items.held)

        metrics.on_refresh.append(show)

    async def close(self) -> None:
        for remote in self._remote.values():
            await remote.close()
        if self._videos is not None:
            await asyncio.to_thread(self._videos.close)

    def kept(self, asked: RequestedImages) -> list[PromptImage] | None:
        """The images, where all of them came in the request, without names, and are kept; else None.
        Thread-safe; for these, `hold` is all that is left to do."""
        found: list[PromptImage] = []
        for part in asked.parts:
            if part.kind != "image" or part.uuid is not None or part.url is None or not is_data(part.url):
                return None
            if len(asked.parts) > self._limits.get("image", DEFAULT_LIMIT):
                return None
            try:
                key = asked.preparation.key(read_local(part.url, self._local["image"]))
            except SourceRefused:
                return None
            image = asked.preparation.cache.get(key)
            if image is None:
                return None
            found.append(PromptImage(image))
        return found

    async def hold(self, images: Sequence[PromptImage]) -> RequestImages:
        """Of `kept`, as `prepare`."""
        request = RequestImages()
        self._kept.inc(len(images))
        await request.take_for_items(self.items, sum(_item_bytes(each.image) for each in images))
        request.images = list(images)
        return request

    async def prepare(self, asked: RequestedImages, scope: str | None, copies: int) -> RequestImages:
        """To be released by the caller, who claims its names when it is answered. ``scope``: whose names of
        images the request's are. ``copies``: how often the request has the items in memory. Raises ApiError
        that names the part at fault."""
        request = RequestImages(self._jobs_of_a_request)
        try:
            names = [_name(part, asked, scope) for part in asked.parts]
            keys, loaded = await self._all_loaded(request, asked, names)
            kept = sum(isinstance(image, Prepared) for image in loaded)
            self._kept.inc(kept)
            await request.take_for_items(self.items, copies * sum(map(_item_bytes, loaded)))
            prepared = await self._each(asked.parts, partial(self._prepared, request, asked), loaded)
            self._processed.inc(len(loaded) - kept)
            placed = zip(names, keys, asked.parts, strict=True)
            request.named = [(name, key, part) for name, key, part in placed if name is not None]
            request.images = list(map(PromptImage, prepared, names))
        except BaseException:
            request.release()
            raise
        return request

    def claim_names(self, request: RequestImages) -> None:
        """The client's names stand for the request's images from now on: all of them, if it is not refused.
        Raises BadRequest where one stands for another image."""
        at_fault = self._names.claim((name, key) for name, key, _ in request.named)
        if at_fault is not None:
            part = request.named[at_fault][2]
            raise BadRequest(
                f"{part.param}: another {part.kind} was sent under its uuid, which engines would go on "
                "showing",
                param=part.param,
            )

    async def measure(self, asked: RequestedImages, scope: str | None) -> list[Replacement]:
        """What stands in the prompt for each image, by its file's header. Raises ApiError that names the part
        at fault."""
        request = RequestImages(self._jobs_of_a_request)
        names = [_name(part, asked, scope) for part in asked.parts]
        try:
            _, loaded = await self._all_loaded(request, asked, names)
            return [image.replacement for image in loaded]
        finally:
            request.release()

    async def _all_loaded(
        self, request: RequestImages, asked: RequestedImages, names: Sequence[str | None]
    ) -> tuple[Sequence[bytes], Sequence[Opened]]:
        """The keys under which they are, or will be, kept; and they. Raises ApiError, also for images that no
        prompt has room for."""
        parts = asked.parts
        for kind, count in Counter(part.kind for part in parts).items():
            limit = self._limits.get(kind, DEFAULT_LIMIT)
            if count > limit:
                raise invalid(
                    f"At most {limit} {kind}(s) may be provided in one prompt. "
                    "Set `--limit-mm-per-prompt` to change this limit.",
                    kind,
                )
        await request.take_for_files(self.files, sum(map(self._file_bytes, parts)))
        sources = _sources(parts, names)
        own = sorted(set(sources))
        each = await self._each(
            [parts[place] for place in own],
            partial(self._fitting, request, asked),
            [names[place] for place in own],
        )
        keyed = dict(zip(own, each, strict=True))
        keys, loaded = zip(*(keyed[source] for source in sources), strict=True)
        asked.check_fits(sum(len(image.replacement.ids) for image in loaded))
        return keys, loaded

    def _file_bytes(self, part: ImagePart) -> int:
        if part.url is None:
            return 0
        if not is_data(part.url):
            return self._local[part.kind].max_bytes
        # A list of frames is kept beside its frames' files.
        return len(part.url) * (2 if part.kind == "video" else 1)

    async def _fitting(
        self, request: RequestImages, asked: RequestedImages, part: ImagePart, name: str | None
    ) -> Keyed:
        """As `_load`. What stands for images takes memory too, so the first that makes the prompt too long
        ends it."""
        keyed = await self._load(request, asked, part, name)
        request.tokens += len(keyed[1].replacement.ids)
        asked.check_fits(request.tokens)
        return keyed

    async def _load(
        self, request: RequestImages, asked: RequestedImages, part: ImagePart, name: str | None
    ) -> Keyed:
        if part.url is None:
            assert name is not None
            return self._kept_under(name, asked.preparation, part)
        rules, pool = self._local[part.kind], self._pools[part.kind]
        frames: bytes | None = None
        async with request.fetching:
            if is_remote(part.url):
                data = await self._remote[part.kind].fetch(part.url)
            elif part.kind == "video" and (frames := listed_frames(part.url, rules)) is not None:
                data = frames
            else:
                data = await request.run(pool, partial(read_local, part.url, rules))
            request.received(data)
        if part.kind == "video":
            assert asked.videos is not None
            source = VideoSource(data, is_list=frames is not None)
            return await request.run(pool, partial(asked.videos.opened, source))
        return await request.run(pool, partial(asked.preparation.opened, data))

    def _kept_under(self, name: str, preparation: ImagePreparation, part: ImagePart) -> Keyed:
        key = self._names.get(name)
        image = None if key is None else preparation.cache.get(key)
        if key is None or image is None or image.replacement.of_video != (part.kind == "video"):
            raise ImageRequired(
                f"{part.param}: no {part.kind} is kept under this uuid; send the {part.kind}",
                param=part.param,
            )
        return key, image

    async def _prepared(
        self, request: RequestImages, asked: RequestedImages, part: ImagePart, loaded: Opened
    ) -> Prepared:
        if isinstance(loaded, Prepared):
            return loaded
        if (done := asked.preparation.cache.get(loaded.key)) is not None:
            return done  # by a request that was a little earlier
        pool = self._pools[part.kind]
        work = partial(_processed, asked, loaded)
        return await self._processing.result(loaded.key, lambda: request.run(pool, work))

    async def _each(
        self, parts: Sequence[ImagePart], work: Callable[..., Awaitable[Result]], *arguments: Sequence[Any]
    ) -> list[Result]:
        """``work`` for every part at once. Raises the first fault as an ApiError, and cancels the others."""

        async def one(part: ImagePart, *rest: Any) -> Result:
            try:
                return await work(part, *rest)
            except (SourceRefused, UnreadableImage, ImageTooLarge, ImageRefused) as error:
                self._refused.inc()
                raise BadRequest(f"{part.param}: {error}", param=part.param) from None
            except FetchFailed as error:
                self._refused.inc()
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


def _processed(asked: RequestedImages, loaded: LoadedImage | LoadedVideo) -> Prepared:
    if isinstance(loaded, LoadedVideo):
        assert asked.videos is not None
        return asked.videos.prepare(loaded)
    return asked.preparation.prepare(loaded)


def _name(part: ImagePart, asked: RequestedImages, scope: str | None) -> str | None:
    """What engines are told for the client's own name."""
    if part.uuid is None:
        return None
    preparation = asked.videos if part.kind == "video" else asked.preparation
    assert preparation is not None
    return owned_hash(preparation.hash_of_name(part.uuid), scope, asked.salt)


def _sources(parts: Sequence[ImagePart], names: Sequence[str | None]) -> list[int]:
    """For each part the place of the one that brings its image: another one, if it is meant by a name alone
    under which the request has it too."""
    named = list(zip(parts, names, strict=True))
    brought = {name: place for place, (part, name) in enumerate(named) if name and part.url is not None}
    return [
        place if part.url is not None or name is None else brought.get(name, place)
        for place, (part, name) in enumerate(named)
    ]


def _item_bytes(image: Opened) -> int:
    return image.size if isinstance(image, Prepared) else image.item_bytes
