"""A video to what a reply holds for it; the same video is processed once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from copy import copy
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from render_tier.multimodal.decoding import ImageTooLarge, UnreadableImage
from render_tier.multimodal.encoding import EncodedItem, FloatType, encode_item, encoded_bytes
from render_tier.multimodal.families import Replacement, VideoForm, VideoPlaces
from render_tier.multimodal.hashing import name_hash, video_hash
from render_tier.multimodal.item import Arrays, ImageRefused
from render_tier.multimodal.prepared import ItemCache, Prepared, PreparedVideo
from render_tier.multimodal.processors.video import VideoLayout, VideoProcessor
from render_tier.multimodal.videos.opened import Frame, FramesMissing, OpenedVideo
from render_tier.multimodal.videos.opening import VideoOpener, VideoSource
from render_tier.multimodal.videos.options import VideoOptions
from render_tier.multimodal.videos.sampling import Facts, middle_times, shown

MOST_POSITIONS = 4
"""Of a token: engines have positions for so many times the tokens of a context, and end at one beyond."""


@dataclass(frozen=True)
class LoadedVideo:
    """A video whose header has been read."""

    key: bytes
    """Digest of the file."""
    data: bytes
    opened: OpenedVideo
    replacement: Replacement
    """If every frame can be read."""
    item_bytes: int
    """Size of its items at most, but for a few bytes."""


class VideoPreparation:
    """For one model with one set of settings. Thread-safe."""

    def __init__(
        self,
        form: VideoForm,
        processor: VideoProcessor,
        opener: VideoOpener,
        *,
        model: str,
        float_type: FloatType,
        as_bytes: bool,
        cache: ItemCache,
    ) -> None:
        """The arguments by name are those of `ImagePreparation`."""
        self.form = form
        self.cache = cache
        self._processor = processor
        self._opener = opener
        self._options = VideoOptions()
        self._model = model
        self._float_type: FloatType = float_type
        self._as_bytes = as_bytes

    @property
    def settings_digest(self) -> bytes:
        """Of what decides what becomes of a video, but not of an image."""
        said = self._options.digest if self._options else b""
        return self._processor.settings_digest + said

    def close(self) -> None:
        """End the processes that are kept for the next video."""
        self._opener.close()

    def key(self, source: VideoSource) -> bytes:
        kind = b"frames" if source.is_list else b"video"
        options = self._options.digest if self._options else b""
        if source.is_list:
            options += bytes(self._options.background)
        return hashlib.sha256(kind + options + hashlib.sha256(source.data).digest()).digest()

    @property
    def processor(self) -> VideoProcessor:
        return self._processor

    @property
    def max_pixels(self) -> int:
        """Of all frames of a video."""
        return self._opener.max_pixels

    def with_options(self, options: VideoOptions, processor: VideoProcessor) -> VideoPreparation:
        """For a request that says this, and is processed by that; with the same cache."""
        other = copy(self)
        other._options = options
        other._processor = processor
        return other

    def hash_of_name(self, uuid: str) -> str:
        """Of a video that the client tells apart by a name."""
        return name_hash(uuid, model=self._model, factors=self._options.factors_of_name, kind="video")

    def opened(self, source: VideoSource) -> tuple[bytes, LoadedVideo | Prepared]:
        """As of images."""
        key = self.key(source)
        return key, self.cache.get(key) or self.load(key, source)

    def load(self, key: bytes, source: VideoSource) -> LoadedVideo:
        """Raises UnreadableImage, ImageTooLarge and ImageRefused."""
        opened = self._opener.open(
            source, self._options.sampling(self.form.sampling), self._options.background
        )
        layout = self._layout(opened, opened.planned)
        pixels = self._processor.group * layout.groups * layout.width * layout.height
        if self._options.processor and pixels > self.max_pixels:
            raise ImageTooLarge(
                f"the video would become {pixels} pixels by mm_processor_kwargs; at most {self.max_pixels} "
                "are allowed"
            )
        item_bytes = encoded_bytes(3 * pixels, self._float_type, as_bytes=self._as_bytes)
        replacement = self._replacement(layout, opened.planned)
        return LoadedVideo(key, source.data, opened, replacement, item_bytes)

    def prepare(self, loaded: LoadedVideo) -> PreparedVideo:
        """Raises UnreadableImage and ImageRefused."""
        try:
            video = self._processed(loaded, loaded.opened.planned)
        except FramesMissing as missing:
            try:
                video = self._processed(loaded, missing.facts)
            except FramesMissing:
                raise UnreadableImage("the video's frames cannot be read reliably") from None
        self.cache.put(loaded.key, video)
        return video

    def _processed(self, loaded: LoadedVideo, facts: Facts) -> PreparedVideo:
        """Raises FramesMissing too."""
        width, height = loaded.opened.size
        layout = self._layout(loaded.opened, facts)
        # vLLM's way: what is smaller is hashed.
        keeps = 3 * width * height * len(facts.indices) < len(loaded.data)
        with closing(loaded.opened.frames(facts)) as frames:
            kept = _Kept(frames) if keeps else None
            left = set(self._shown(facts))
            # The frames come first: they are asked for until they end, which tells whether all could be read.
            numbered = zip(frames if kept is None else kept, facts.indices, strict=False)
            arrays = self._processor.process((frame for frame, index in numbered if index in left), layout)
        mm_hash = video_hash(
            loaded.data,
            model=self._model,
            facts=facts.described(),
            frames=None if kept is None else np.stack(kept.frames),
            factors=self._options.hash_factors if kept else self._options.factors_of_file(facts),
        )
        items = self._items(arrays, facts)
        return PreparedVideo(items, self.form.modality, self._replacement(layout, facts), mm_hash)

    def _layout(self, opened: OpenedVideo, facts: Facts) -> VideoLayout:
        if not facts.indices:
            raise UnreadableImage("none of the video's frames can be read")
        return self._processor.layout(len(self._shown(facts)), *opened.size)

    def _shown(self, facts: Facts) -> tuple[int, ...]:
        return shown(self.form.sampling, facts)

    def _replacement(self, layout: VideoLayout, facts: Facts) -> Replacement:
        """Raises ImageRefused."""
        group = self._processor.group
        times = middle_times(self._shown(facts), facts.rate, group) if facts.rate else []
        made = self.form.replacement(VideoPlaces(layout.groups, layout.height, layout.width, times))
        far = self.form.positions_a_second * layout.groups * group
        if far > MOST_POSITIONS * made.count * facts.taken_rate:
            raise ImageRefused(
                f"the {len(facts.indices)} frames that are taken of the video are too far apart for the model"
            )
        return made

    def _items(self, arrays: Arrays, facts: Facts) -> tuple[EncodedItem, ...]:
        if facts.taken_rate:
            seconds = self._processor.group / facts.taken_rate
            arrays = {**arrays, "second_per_grid_ts": np.array(seconds, np.float32)}
        return tuple(encode_item(each, self.form, self._float_type) for each in self.form.items(arrays))


class _Kept:
    """Frames that are remembered when they are asked for."""

    def __init__(self, frames: Iterator[Frame]) -> None:
        self._given = frames
        self.frames: list[npt.NDArray[np.uint8]] = []

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._given:
            self.frames.append(frame.copy())
            yield frame
