"""The images in a client's messages: where they are, and how a message says so to the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from render_tier.protocol.errors import BadRequest
from render_tier.protocol.messages import MEDIA_FIELDS
from render_tier.protocol.validation import invalid

IMAGE_TYPES = frozenset({"image_url", "input_image"})
MEDIA_TYPES = frozenset(
    {
        *IMAGE_TYPES,
        *("image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds"),
        *("video_url", "video_embeds"),
    }
)
MAX_UUID_CHARS = 256
DETAILS = ("auto", "low", "high", "original")
"""OpenAI's. None of the families' processors has such a setting, so they all mean the same."""


@dataclass(frozen=True)
class ImagePart:
    param: str
    """Where it is in the request, like ``messages.0.content.1.image_url``."""
    url: str | None
    """None: the image that was sent under the same `uuid` before."""
    uuid: str | None = None
    """The client's own name for the image, which it is told apart by instead of by its bytes."""
    detail: str | None = None


@dataclass(frozen=True)
class ImageMarks:
    """How a model's prompts show where an image is."""

    text: str
    """Stands for an image in content that becomes one string."""
    token: str
    """The special token of which a template writes one for an image."""
    literal_is_text: bool = False
    """Whether `token`, where a message spells it, is encoded as text."""


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any part of a message is an image, video or sound."""
    return any(
        is_media(part)
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def is_media(part: object) -> bool:
    return isinstance(part, dict) and (
        part.get("type") in MEDIA_TYPES or any(field in part for field in MEDIA_FIELDS)
    )


def image_parts(messages: Sequence[Mapping[str, Any]]) -> list[ImagePart]:
    """The images in the order of the prompt. Raises BadRequest for other media, and for an image with neither
    a URL nor a `uuid`."""
    return [
        _image_part(part, f"messages.{index}.content.{position}")
        for index, message in enumerate(messages)
        if isinstance(message.get("content"), list)
        for position, part in enumerate(message["content"])
        if is_media(part)
    ]


def _image_part(part: Mapping[str, Any], where: str) -> ImagePart:
    kind = part.get("type") or next(field for field in MEDIA_FIELDS if field in part)
    if kind not in IMAGE_TYPES:
        raise BadRequest(
            f"{where}: {str(kind)[:100]!r} parts are not supported; images are, as image_url", param=where
        )
    param = f"{where}.image_url"
    held = part.get("image_url")
    url = held.get("url") if isinstance(held, dict) else held
    detail = _detail(part, held, param)
    uuid = part.get("uuid")
    if uuid is not None and len(str(uuid)) > MAX_UUID_CHARS:
        raise BadRequest(f"{where}.uuid: longer than {MAX_UUID_CHARS} characters", param=f"{where}.uuid")
    if url is None and uuid is not None:
        return ImagePart(param, None, str(uuid), detail)
    if not isinstance(url, str) or not url:
        raise BadRequest(f"{param}: an image needs a `url`, which is a string", param=param)
    return ImagePart(param, url, None if uuid is None else str(uuid), detail)


def _detail(part: Mapping[str, Any], held: object, param: str) -> str | None:
    """Beside the URL in chat's form, beside `image_url` in that of Responses."""
    inside = held.get("detail") if isinstance(held, dict) else None
    detail = part.get("detail") if inside is None else inside
    if detail is not None and detail not in DETAILS:
        raise BadRequest(f"{param}.detail: one of {', '.join(DETAILS)} is needed", param=f"{param}.detail")
    return detail


def ignored_details(parts: Sequence[ImagePart]) -> list[str]:
    """What to tell a client that asked for more or less detail of an image than others have."""
    return [
        f"{part.param}.detail has no effect: the model has one way of showing images"
        for part in parts
        if part.detail not in (None, "auto")
    ]


def with_marks(texts: Sequence[str], images: int, marks: ImageMarks) -> str:
    """One message's content as a string: its texts in lines, the marks that they do not hold in front.

    Raises BadRequest for texts that hold more of them than the message has images.
    """
    text = "\n".join(filter(None, texts))
    if not images:
        return text
    missing = images - text.count(marks.text)
    if missing < 0:
        raise invalid(
            f"Found more '{marks.text}' placeholders in input prompt than actual multimodal data items.",
            "messages",
        )
    return "\n".join([*[marks.text] * missing, *([text] if text else [])])


def refuse_literal(text: str, marks: ImageMarks) -> None:
    """Raises BadRequest for text that would be taken for the place of an image."""
    if not marks.literal_is_text and marks.token in text:
        raise BadRequest(
            f"a text beside images holds {marks.token!r}, which would be taken for the place of an image",
            param="messages",
        )
