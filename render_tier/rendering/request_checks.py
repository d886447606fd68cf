"""What of a request is refused before anything is rendered."""

from __future__ import annotations

from collections.abc import Sequence

from render_tier.protocol.chat import ChatTemplateFields
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import BadRequest, NotFound
from render_tier.protocol.request_fields import SamplingFields
from render_tier.protocol.responses_request import ResponsesRequest
from render_tier.protocol.validation import invalid


def check_model(model: str | None, served_names: Sequence[str]) -> None:
    """Raises NotFound for a name that is not served."""
    if model and model not in served_names:
        aliases = ", ".join(served_names)
        raise NotFound(f"The model `{model[:200]}` does not exist. Valid aliases: {aliases}.", param="model")


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


def refuse_previous_response(request: ResponsesRequest) -> None:
    """Raises BadRequest."""
    if request.previous_response_id is not None:
        raise BadRequest(
            "previous_response_id is not supported: nothing is stored here. Send the whole history in "
            "`input`.",
            param="previous_response_id",
            type="invalid_request_error",
        )


def check_media_options(request: ChatTemplateFields, *, trusted: bool) -> None:
    """Raises BadRequest where there are any that are not trusted."""
    if trusted:
        return
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(request, name):
            effect = "preprocessing" if name == "mm_processor_kwargs" else "media loading"
            raise invalid(
                f"Per-request {name} are disabled by default because they can change multimodal {effect} "
                "resource usage. Start the server with --trust-request-mm-kwargs only when clients are "
                "trusted.",
                name,
            )
