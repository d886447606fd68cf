"""The images and videos in a client's messages: where they are, and how a message says so to the template."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from render_tier.protocol.errors import BadRequest
from render_tier.protocol.messages import MEDIA_FIELDS
from render_tier.protocol.validation import invalid

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.families import Spelled

Kind = Literal["image", "video"]
IMAGE_TYPES = frozenset({"image_url", "input_image"})
VIDEO_TYPE = "video_url"
TYPES: Mapping[Kind, frozenset[str]] = {"image": IMAGE_TYPES, "video": frozenset({VIDEO_TYPE})}
MEDIA_TYPES = frozenset(
    {
        *IMAGE_TYPES,
        *("image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds"),
        *(VIDEO_TYPE, "video_embeds"),
    }
)
MAX_UUID_CHARS = 256
DETAILS = ("auto", "low", "high", "original")
"""OpenAI's, of images. None of the families' processors has such a setting, so they all mean the same."""


@dataclass(frozen=True)
class ImagePart:
    param: str
    """Where it is in the request, like ``messages.0.content.1.image_url``."""
    url: str | None
    """None: the image that was sent under the same `uuid` before."""
    uuid: str | None = None
    """The client's own name for the image, which it is told apart by instead of by its bytes."""
    kind: Kind = "image"
    detail: str | None = None


@dataclass(frozen=True)
class Mark:
    """How a model's prompts show where an image, or a video, is."""

    text: str
    """Stands for it in content that becomes one string."""
    token: str
    """What a template writes once for it: a special token, if it is not spelled."""
    spelled: Spelled | None = None


@dataclass(frozen=True)
class MediaMarks:
    by_kind: Mapping[Kind, Mark]
    """Of what the model takes."""
    literal_is_text: bool = False
    """Whether special tokens, where a message spells them, are encoded as text."""

    @property
    def types(self) -> frozenset[str]:
        """Of the parts that the model takes."""
        return frozenset().union(*(TYPES[kind] for kind in self.by_kind))

    def of(self, messages: Sequence[Mapping[str, Any]]) -> MediaMarks | None:
        """Those of what the messages have, in its order; None where they have nothing."""
        kinds = dict.fromkeys(map(media_kind, _media(messages)))
        found = {kind: self.by_kind[kind] for kind in kinds if kind is not None and kind in self.by_kind}
        return MediaMarks(found, self.literal_is_text) if kinds else None


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any part of a message is an image, video or sound."""
    return any(True for _ in _media(messages))


def _media(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            yield from filter(is_media, content)


def media_kind(part: Mapping[str, Any]) -> Kind | None:
    """None for what no model here takes."""
    kind = part.get("type") or next(field for field in MEDIA_FIELDS if field in part)
    if not isinstance(kind, str):
        return None
    return "image" if kind in IMAGE_TYPES else "video" if kind == VIDEO_TYPE else None


def is_media(part: object) -> bool:
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    return (isinstance(kind, str) and kind in MEDIA_TYPES) or any(field in part for field in MEDIA_FIELDS)


def image_parts(messages: Sequence[Mapping[str, Any]], kinds: Collection[Kind]) -> list[ImagePart]:
    """The images and videos in the order of the prompt. ``kinds``: what the model takes. Raises BadRequest
    for other media, and for an image with neither a URL nor a `uuid`."""
    return [
        _image_part(part, f"messages.{index}.content.{position}", kinds)
        for index, message in enumerate(messages)
        if isinstance(message.get("content"), list)
        for position, part in enumerate(message["content"])
        if is_media(part)
    ]


def _image_part(part: Mapping[str, Any], where: str, kinds: Collection[Kind]) -> ImagePart:
    kind = media_kind(part)
    if kind is None or kind not in kinds:
        named = part.get("type") or next(field for field in MEDIA_FIELDS if field in part)
        taken = " and ".join(f"{each}s are, as {each}_url" for each in kinds)
        raise BadRequest(
            f"{where}: {str(named)[:100]!r} parts are not supported for this model; {taken}", param=where
        )
    field = f"{kind}_url"
    param = f"{where}.{field}"
    held = part.get(field)
    url = held.get("url") if isinstance(held, dict) else held
    detail = _detail(part, held, param)
    uuid = _uuid(part, f"{where}.uuid")
    if url is None and uuid is not None:
        return ImagePart(param, None, uuid, kind, detail)
    if not isinstance(url, str) or not url:
        raise BadRequest(f"{param}: the {kind} needs a `url`, which is a string", param=param)
    return ImagePart(param, url, uuid, kind, detail)


def _uuid(part: Mapping[str, Any], param: str) -> str | None:
    uuid = part.get("uuid")
    if uuid == "":
        return None  # what clients without a name of their own may send for all of their images
    if uuid is not None and not isinstance(uuid, str):
        raise BadRequest(f"{param}: a string is needed", param=param)
    if uuid is not None and len(uuid) > MAX_UUID_CHARS:
        raise BadRequest(f"{param}: longer than {MAX_UUID_CHARS} characters", param=param)
    return uuid


def _detail(part: Mapping[str, Any], held: object, param: str) -> str | None:
    """Beside the URL in chat's form, beside `image_url` in that of Responses."""
    inside = held.get("detail") if isinstance(held, dict) else None
    detail = part.get("detail") if inside is None else inside
    if detail is not None and detail not in DETAILS:
        raise BadRequest(f"{param}.detail: one of {', '.join(DETAILS)} is needed", param=f"{param}.detail")
    return detail


def ignored_details(parts: Sequence[ImagePart]) -> list[str]:
    """What to tell a client that asked for more or less detail than others have."""
    return [
        f"{part.param}.detail has no effect: the model has one way of showing {part.kind}s"
        for part in parts
        if part.detail not in (None, "auto")
    ]


def with_marks(texts: Sequence[str], media: Sequence[Mapping[str, Any]], marks: MediaMarks) -> str:
    """One message's content as a string: its texts in lines, the marks that they do not hold in front.

    ``media``: the message's images and videos. Raises BadRequest for texts that hold more marks than those
    are.
    """
    text = "\n".join(filter(None, texts))
    kinds = [kind for part in media if (kind := media_kind(part)) is not None]
    missing: list[str] = []
    for kind in dict.fromkeys(kinds):
        mark = marks.by_kind[kind].text
        lacking = kinds.count(kind) - text.count(mark)
        if lacking < 0:
            raise invalid(
                f"Found more '{mark}' placeholders in input prompt than actual multimodal data items.",
                "messages",
            )
        missing += [mark] * lacking
    return "\n".join([*missing, *([text] if text else [])])


def refuse_literal(text: str, marks: MediaMarks) -> None:
    """Raises BadRequest for text that would be taken for the place of an image or a video."""
    for kind, mark in marks.by_kind.items():
        is_text = marks.literal_is_text and mark.spelled is None
        if not is_text and mark.token in text:
            place = "an image" if kind == "image" else "a video"
            raise BadRequest(
                f"a text beside {kind}s holds {mark.token!r}, which would be taken for the place of {place}",
                param="messages",
            )
