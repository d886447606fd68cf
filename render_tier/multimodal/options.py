"""What a request says of how its images are read and processed, checked by name, type and bound."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from render_tier.multimodal.decoding import BACKGROUND, Color
from render_tier.multimodal.item import ImageProcessor
from render_tier.multimodal.processors.request_settings import Kind, settings_of
from render_tier.multimodal.scopes import SCOPES, of_kind, settings_for
from render_tier.multimodal.scopes import Kind as MediaKind

PROCESSOR, READING = "mm_processor_kwargs", "media_io_kwargs"
MODALITY = "image"
MODE, COLOR = "image_mode", "rgba_background_color"
EDGES = frozenset({"height", "width", "shortest_edge", "longest_edge"})
ORDERED = (
    ("min_pixels", "max_pixels"),
    ("min_patches", "max_patches"),
    ("min_dynamic_patch", "max_dynamic_patch"),
)


class OptionRefused(ValueError):
    """A value that no image is processed with; `param` is where the request has it."""

    def __init__(self, param: str, reason: str) -> None:
        super().__init__(f"{param}: {reason}")
        self.param = param


@dataclass(frozen=True)
class ImageOptions:
    processor: Mapping[str, Any] = field(default_factory=dict)
    """`mm_processor_kwargs` as the client wrote them: the order of names counts in vLLM's hashes."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """`media_io_kwargs` of images, likewise."""

    def __bool__(self) -> bool:
        return bool(self.processor or self.reading)

    @property
    def background(self) -> Color:
        """What transparency is laid on."""
        red, green, blue = self.reading.get(COLOR, BACKGROUND)
        return red, green, blue

    @property
    def hash_factors(self) -> dict[str, Any]:
        """What is part of an image's hash beside the image, by vLLM's names."""
        reading = {READING: {MODALITY: self.reading}} if self.reading else {}
        return {**reading, **({PROCESSOR: self.processor} if self.processor else {})}

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(msgspec.json.encode(self.hash_factors)).digest()


def image_options(
    mm_processor_kwargs: Mapping[str, Any] | None,
    media_io_kwargs: Mapping[str, Mapping[str, Any]] | None,
    *,
    processor: ImageProcessor,
    most: int,
    of_videos: Collection[str] = (),
) -> ImageOptions:
    """``most``: largest number in them. ``of_videos``: settings of the model's processor of videos, which are
    not looked at here. Raises OptionRefused."""
    asked = processor_options(
        mm_processor_kwargs or {}, "image", settings_of(processor), elsewhere=of_videos, most=most
    )
    reading: Mapping[str, Any] = {}
    for modality, settings in (media_io_kwargs or {}).items():
        if modality != MODALITY:
            raise OptionRefused(
                f"{READING}.{modality[:100]}", f"not known here; {MODALITY} is, and of some models video"
            )
        reading = settings
    for name, value in reading.items():
        _check_reading(f"{READING}.{MODALITY}.{name[:100]}", name, value)
    return ImageOptions(asked, dict(reading))


def processor_options(
    given: Mapping[str, Any],
    kind: MediaKind,
    known: Mapping[str, Kind],
    *,
    elsewhere: Collection[str],
    most: int,
) -> dict[str, Any]:
    """Those of `mm_processor_kwargs` that count for media of a kind, as the client wrote them, checked but
    for those that are of other media's processors (``elsewhere``). Raises OptionRefused."""
    asked = of_kind(given, kind)
    scope = SCOPES[kind]
    if not isinstance(asked.get(scope, {}), Mapping):
        raise OptionRefused(f"{PROCESSOR}.{scope}", "an object is needed")
    if scope in asked and len(asked) > 1:  # which of them counts for what differs in vLLM by the model
        raise OptionRefused(f"{PROCESSOR}.{scope}", "not beside names that are not of one kind of media")
    where = f"{PROCESSOR}.{scope}" if scope in asked else PROCESSOR
    settings = settings_for(asked, kind)
    for name, value in settings.items():
        param = f"{where}.{name[:100]}"
        if name in known:
            _check(param, value, known[name], most)
        elif scope in asked or name not in elsewhere:
            raise OptionRefused(param, f"not known here; {_names(known)} for this model")
    for low, high in ORDERED:
        if low in settings and high in settings and settings[low] > settings[high]:
            raise OptionRefused(f"{where}.{low}", f"more than {high}")
    return asked


def _check(param: str, value: Any, kind: Kind, most: int) -> None:
    if kind == "flag" and not isinstance(value, bool):
        raise OptionRefused(param, "neither true nor false")
    if kind == "count":
        _check_count(param, value, most)
    if kind == "ratio" and not (type(value) in (int, float) and 1 <= value <= most):
        raise OptionRefused(param, f"a number from 1 to {most} is needed")
    if kind == "size":
        if not isinstance(value, Mapping) or not value or not value.keys() <= EDGES:
            raise OptionRefused(param, f"an object is needed, with some of {', '.join(sorted(EDGES))}")
        for edge, length in value.items():
            _check_count(f"{param}.{edge}", length, most)


def _check_count(param: str, value: Any, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise OptionRefused(param, f"a whole number from 1 to {most} is needed")


def _check_reading(param: str, name: str, value: Any) -> None:
    if name == MODE:
        if value != "RGB":
            raise OptionRefused(param, "images are read as RGB")
    elif name == COLOR:
        is_color = isinstance(value, list) and len(value) == 3
        if not is_color or not all(type(part) is int and 0 <= part <= 255 for part in value):
            raise OptionRefused(param, "a list of three whole numbers from 0 to 255 is needed")
    else:
        raise OptionRefused(param, f"not known here; {MODE} and {COLOR} are")


def _names(known: Mapping[str, Kind]) -> str:
    if not known:
        return "nothing is"
    return f"{', '.join(sorted(known))} {'is' if len(known) == 1 else 'are'}"
