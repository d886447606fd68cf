"""An image's file to what a reply holds for it; the same file is processed once."""

from __future__ import annotations

import hashlib
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from copy import copy
from dataclasses import dataclass
from typing import Literal

from blake3 import blake3

from render_tier.multimodal.decoding import Color, ImageTooLarge, OpenedImage, conversion
from render_tier.multimodal.encoding import EncodedItem, FloatType, encode_item, encode_picture, encoded_bytes
from render_tier.multimodal.families import Family, Replacement
from render_tier.multimodal.hashing import image_hash, name_hash, part_hash
from render_tier.multimodal.item import Arrays, ImageLayout, ImageProcessor, ImageRefused
from render_tier.multimodal.options import ImageOptions

InRuns = Literal["refused", "masks", "pictures"]
"""What engines are given of an image whose embeddings are in several runs, and where those are."""
REFUSED = "this model's images are refused here, or cannot be sent in that way (--mm-images-in-runs)"
OVERHEAD = 1024
"""Bytes that an entry takes beside its JSON."""


Modality = Literal["image", "video"]


@dataclass(frozen=True)
class NamedItem:
    """What an engine is sent for one place in the prompt."""

    modality: Modality
    mm_hash: str
    item: EncodedItem
    tokens: int
    """Of its place."""
    named_only: bool = False
    """Its data is not sent."""


@dataclass(frozen=True)
class Prepared(ABC):
    """An image or a video that has been processed."""

    items: tuple[EncodedItem, ...]
    modality: Modality
    """What engines are told that the items are."""
    replacement: Replacement
    mm_hash: str

    @property
    def size(self) -> int:
        return sum(item.size for item in self.items)

    @property
    @abstractmethod
    def is_one_item(self) -> bool:
        """Whether its name is that of its only item; items are named as parts of it otherwise."""

    def named_items(self, mm_hash: str) -> list[NamedItem]:
        """One for each of its places, with names that come of ``mm_hash``."""
        return [
            NamedItem(
                self.modality,
                mm_hash if self.is_one_item else part_hash(mm_hash, number),
                item,
                self.replacement.count,
            )
            for number, item in enumerate(self.items)
        ]


class PreparedImage(Prepared):
    @property
    def is_one_item(self) -> bool:
        return len(self.items) == 1


class PreparedVideo(Prepared):
    @property
    def is_one_item(self) -> bool:
        """Frames that engines take as images are parts of a video, even if there is one of them."""
        return self.modality == "video"


@dataclass(frozen=True)
class LoadedImage:
    """A file whose header has been read."""

    key: bytes
    """Digest of the file, and of what the request says of it."""
    data: bytes
    opened: OpenedImage
    replacement: Replacement
    item_bytes: int
    """Size of its item, but for a few bytes."""


class ItemCache:
    """Prepared images by `LoadedImage.key`, the least recently used ones dropped. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[bytes, Prepared] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Prepared | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: bytes, image: Prepared) -> None:
        size = image.size + OVERHEAD
        if size > self._max_bytes:
            return
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = image
            self.bytes += size
            while self.bytes > self._max_bytes:
                _, oldest = self._entries.popitem(last=False)
                self.bytes -= oldest.size + OVERHEAD


class ImagePreparation:
    """For one model with one set of settings. Thread-safe."""

    def __init__(
        self,
        family: Family,
        processor: ImageProcessor,
        *,
        model: str,
        float_type: FloatType,
        as_bytes: bool,
        in_runs: InRuns,
        max_pixels: int,
        cache_bytes: int,
    ) -> None:
        """``model``: part of every hash, as the operator names it to engines too. ``as_bytes``: whether the
        processor leaves pixels as they are, which are then sent as bytes; it does for pictures. ``processor``
        has the engines' settings."""
        self.family = family
        self.processor = self._engines_processor = processor
        self.pictured = family.in_runs and in_runs == "pictures"
        refused = in_runs == "refused" or (family.is_own_format and not self.pictured)
        self._options = ImageOptions()
        self._model = model
        self._float_type: FloatType = float_type
        self._as_bytes = as_bytes
        self.refusal = REFUSED if family.in_runs and refused else None
        """Of every image, where none is taken."""
        self.max_pixels = max_pixels
        self.cache = ItemCache(cache_bytes)

    @property
    def settings_digest(self) -> bytes:
        """Of all that decides what an image becomes."""
        form = f"{self._model}\n{self._float_type}\n{self._as_bytes}\n{self.pictured}".encode()
        said = self._options.digest if self._options else b""
        return hashlib.sha256(self.processor.settings_digest + form + said).digest()

    @property
    def background(self) -> Color:
        """What transparency is laid on."""
        return self._options.background

    def with_options(self, options: ImageOptions, processor: ImageProcessor) -> ImagePreparation:
        """For a request that says this, and is processed by that; with the same cache."""
        other = copy(self)
        other._options = options
        other.processor = processor
        return other

    def key(self, data: bytes) -> bytes:
        # A digest of digests in any case: nothing that a client may send as a file has the key of another.
        said = self._options.digest if self._options else b""
        return blake3(said + blake3(data).digest()).digest()

    def hash_of_name(self, uuid: str) -> str:
        """Of an image that the client tells apart by a name."""
        return name_hash(uuid, model=self._model, factors=self._options.hash_factors)

    def opened(self, data: bytes) -> tuple[bytes, LoadedImage | Prepared]:
        """The key under which the file is kept, and what is kept, or its header. Raises as `load`."""
        key = self.key(data)
        return key, self.cache.get(key) or self.load(key, data)

    def load(self, key: bytes, data: bytes) -> LoadedImage:
        """Raises UnreadableImage, ImageTooLarge and ImageRefused."""
        opened = OpenedImage(data, max_pixels=self.max_pixels)
        width, height = opened.size
        layout = self.processor.layout(width, height)
        pixels = layout.width * layout.height * layout.tiles
        if self._options.processor and pixels > self.max_pixels:
            raise ImageTooLarge(
                f"the image would become {pixels} pixels by mm_processor_kwargs; at most {self.max_pixels} "
                "are allowed"
            )
        resized = not self.family.is_own_format
        if self.pictured and resized and not self._stays(layout):
            raise ImageRefused(
                f"engines would make another size of an image of {layout.width}x{layout.height} pixels"
            )
        values = 3 * (pixels if resized else width * height) * self.family.frames
        item_bytes = encoded_bytes(values, self._float_type, as_bytes=self._as_bytes or self.pictured)
        replacement = self.family.replacement(layout, width, height)
        return LoadedImage(key, data, opened, replacement, item_bytes)

    def prepare(self, loaded: LoadedImage) -> PreparedImage:
        """Raises UnreadableImage and ImageRefused."""
        if self.refusal is not None:
            raise ImageRefused(self.refusal)
        background = self.background
        pixels, converted = loaded.opened.pixels(background)
        processed = self.processor.process(pixels)
        layout = self.processor.layout(processed.width, processed.height)
        items = self.family.items(processed.arrays)
        image = PreparedImage(
            tuple(self._encoded(arrays) for arrays in items),
            "image",
            self.family.replacement(layout, processed.width, processed.height),
            image_hash(
                loaded.data,
                model=self._model,
                conversion=conversion(background) if converted else None,
                factors=self._options.hash_factors,
            ),
        )
        self.cache.put(loaded.key, image)
        return image

    def _encoded(self, arrays: Arrays) -> EncodedItem:
        if self.pictured:
            return encode_picture(arrays["pixel_values"])
        return encode_item(arrays, self.family, self._float_type)

    def _stays(self, layout: ImageLayout) -> bool:
        """Whether engines leave a picture of that size as it is."""
        return self._engines_processor.layout(layout.width, layout.height) == layout
