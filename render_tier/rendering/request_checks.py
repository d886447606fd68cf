"""What of a request is refused before anything is rendered."""

from __future__ import annotations

from typing import Any

from render_tier.protocol.chat import ChatTemplateFields
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.messages import MEDIA_FIELDS
from render_tier.protocol.request_fields import SamplingFields
from render_tier.protocol.validation import invalid
from render_tier.rendering.conversation import MEDIA_TYPES


def has_media(messages: list[dict[str, Any]]) -> bool:
    """Whether any part of a message is an image, video or sound."""
    return any(
        isinstance(part, dict)
        and (part.get("type") in MEDIA_TYPES or any(field in part for field in MEDIA_FIELDS))
        for message in messages
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def refuse_beam_search(request: SamplingFields) -> None:
    """Raises BadRequest."""
    if request.use_beam_search:
        raise BadRequest("Beam search is not supported by the render endpoint")


def refuse_suffix(request: CompletionRequest) -> None:
    """Raises BadRequest, in the order of vLLM's reasons."""
    if request.echo:
        raise BadRequest("Echo is unsupported with suffix.", param="suffix")
    if request.truncate_prompt_tokens is not None:
        raise BadRequest("suffix is not supported with truncate_prompt_tokens", param="suffix")
    raise BadRequest("suffix is only supported for models with FIM completion rendering", param="suffix")


def refuse_media_options(request: ChatTemplateFields) -> None:
    """Raises BadRequest where there are any."""
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(request, name):
            effect = "preprocessing" if name == "mm_processor_kwargs" else "media loading"
            raise invalid(
                f"Per-request {name} are disabled by default because they can change multimodal {effect} "
                "resource usage. Start the server with --trust-request-mm-kwargs only when clients are "
                "trusted.",
                name,
            )
