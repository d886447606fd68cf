"""Images on their way through encode members: which goes next, what an encoder has said of it, and what the
engine that computes the prompt is told.

Theory of operation
-------------------
An encoder is an engine that runs the vision part of the model alone. It is sent one image at a time, as a
prompt that is nothing but the image's placeholders, and keeps what it has computed under the image's hash; it
answers with ``ec_transfer_params``: by hash, what another engine needs to find it. Those of all images go to
the engine that computes the prompt, which then need not compute the image.

An image that no encoder has taken stays as it is, and that engine computes it, as it would without encoders.
An answer that speaks of another hash is of no use: what is kept under it is another picture.

Engines name files by hashes, so none goes there that a client has chosen (``legs.named_apart``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.long_strings import with_strings

Given = Literal["metadata", "whole"]
"""What an engine gets of an image that is encoded: what its placeholders need, or all of it."""


@dataclass(frozen=True, slots=True)
class Image:
    """A picture of a prompt; one that is shown twice is one."""

    modality: str
    hash: str
    place: Mapping[str, Any]
    """Of its placeholders among the prompt's IDs: ``offset``, ``length``, and what else render says of it."""
    data: msgspec.Raw
    metadata: msgspec.Raw


class _Features(msgspec.Struct):
    """By modality, one entry per item, as ``core.media`` has checked."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[dict[str, Any]]]
    kwargs_data: dict[str, list[msgspec.Raw]]
    mm_metadata: dict[str, list[msgspec.Raw]] | None = None

    def metadata(self, modality: str, index: int) -> msgspec.Raw:
        return _NULL if self.mm_metadata is None else self.mm_metadata[modality][index]


def images_of(prompt: RenderedPrompt) -> list[Image]:
    """In the order in which they stand in the prompt. ``prompt`` has the data of all."""
    features = _features_decoder.decode(prompt.fields["features"])
    found = [
        Image(modality, name, place, data, features.metadata(modality, index))
        for modality, names in features.mm_hashes.items()
        for index, (name, place, data) in enumerate(
            zip(names, features.mm_placeholders[modality], features.kwargs_data[modality], strict=True)
        )
    ]
    found.sort(key=lambda image: image.place["offset"])
    return list({image.hash: image for image in reversed(found)}.values())[::-1]


def encode_leg(prompt: RenderedPrompt, image: Image, request_id: str) -> dict[str, Any]:
    """The generate request for an encoder, which samples nothing."""
    offset, length = image.place["offset"], image.place["length"]
    by_modality = {
        "mm_hashes": image.hash,
        "mm_placeholders": {**image.place, "offset": 0},
        "kwargs_data": image.data,
        "mm_metadata": image.metadata,
    }
    features = {name: {image.modality: [value]} for name, value in by_modality.items()}
    kept = {name: raw for name, raw in prompt.fields.items() if name in ("model", "cache_salt", "priority")}
    return kept | {
        "request_id": request_id,
        "token_ids": prompt.token_ids[offset : offset + length],
        "features": with_strings(msgspec.Raw(msgspec.json.encode(features)), prompt.strings),
        "sampling_params": {"n": 1, "max_tokens": 1, "temperature": 0.0, "ignore_eos": True},
        "stream": False,
        "output_mode": "tokens",
    }


class UnusableEncoding(ValueError):
    """An encoder's answer that no engine can do anything with; the message says why."""


def read_encoding(image: Image, params: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What the encoder's ``ec_transfer_params`` say of the one image that it was sent. Raises
    ``UnusableEncoding``."""
    if not params:
        raise UnusableEncoding("the answer has no ec_transfer_params")
    others = params.keys() - {image.hash}
    if others:
        raise UnusableEncoding(
            f"ec_transfer_params are of {min(others)[:128]!r}, the image is {image.hash!r}"
        )
    encoding = params[image.hash]
    if not isinstance(encoding, dict):
        raise UnusableEncoding("what ec_transfer_params say of the image is no object")
    return encoding


def with_encodings(
    prompt: RenderedPrompt,
    images: Sequence[Image],
    encodings: Mapping[str, Mapping[str, Any]],
    given: Given,
) -> RenderedPrompt:
    """``prompt`` for the engine that computes it: it is told where those of its ``images`` are that
    ``encodings`` has by hash, and gets no data of those, unless ``given`` is "whole"."""
    if not encodings:
        return prompt
    if given == "whole":
        return replace(prompt, encodings=encodings)
    # Without metadata the placeholders of an image cannot be understood.
    named = {image.hash for image in images if image.hash in encodings and image.metadata != _NULL}
    data = {image.hash: _NULL if image.hash in named else image.data for image in images}
    features = _raw_decoder.decode(prompt.fields["features"])
    hashes = _hashes_decoder.decode(features["mm_hashes"])
    left = {modality: [data[name] for name in names] for modality, names in hashes.items()}
    features["kwargs_data"] = msgspec.Raw(msgspec.json.encode(left))
    fields = {**prompt.fields, "features": msgspec.Raw(msgspec.json.encode(features))}
    return replace(prompt, fields=fields, encodings=encodings, lacks_data=bool(named))


@dataclass
class FanOut:
    """The images of one prompt, at most ``at_once`` of them with encoders at a time, each at most
    ``attempts`` times."""

    images: Sequence[Image]
    attempts: int
    at_once: int
    encodings: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By hash."""
    _attempts: dict[str, int] = field(default_factory=dict)
    _under_way: int = 0

    def __post_init__(self) -> None:
        self._waiting = deque(self.images)

    @property
    def over(self) -> bool:
        """Every image has been encoded or left."""
        return not self._waiting and not self._under_way

    def begin(self) -> list[Image]:
        """Those that go to an encoder now."""
        begun = [
            self._waiting.popleft() for _ in range(min(self.at_once - self._under_way, len(self._waiting)))
        ]
        self._under_way += len(begun)
        for image in begun:
            self._attempts[image.hash] = self._attempts.get(image.hash, 0) + 1
        return begun

    def encoded(self, image: Image, encoding: Mapping[str, Any]) -> None:
        self._under_way -= 1
        self.encodings[image.hash] = encoding

    def failed(self, image: Image, *, retry_safe: bool) -> bool:
        """Whether it will go to an encoder again; otherwise it is left as it is."""
        self._under_way -= 1
        again = retry_safe and self._attempts[image.hash] < self.attempts
        if again:
            self._waiting.appendleft(image)
        return again


_NULL: Final = msgspec.Raw(b"null")
_features_decoder = msgspec.json.Decoder(_Features)
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_hashes_decoder = msgspec.json.Decoder(dict[str, list[str]])
