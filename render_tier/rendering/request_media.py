"""A request's images and videos: which it needs, and where their tokens stand in its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from render_tier.protocol.chat import ChatCompletionRequest, ChatTemplateFields
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.tokenize import TokenizeChatRequest
from render_tier.protocol.validation import invalid
from render_tier.rendering.encoder import EncodedPrompt, EncodeOptions, PromptEncoder
from render_tier.rendering.image_parts import (
    ImagePart,
    Kind,
    Mark,
    MediaMarks,
    ignored_details,
    image_parts,
)
from render_tier.rendering.request_checks import check_media_options
from render_tier.rendering.requested_images import RequestedImages
from render_tier.rendering.token_ids import PromptIds

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.families import Replacement
    from render_tier.multimodal.features import Features
    from render_tier.multimodal.pictures import Pictures
    from render_tier.multimodal.placeholders import Range
    from render_tier.multimodal.vision import PromptImage, Vision


class RequestMedia:
    """Thread-safe; keeps nothing between requests."""

    def __init__(self, vision: Vision | None, encoder: PromptEncoder, *, trusts_options: bool) -> None:
        """``vision``: None for a text model. ``trusts_options``: whether a request may say how its media are
        read and processed."""
        self._vision = vision
        self._encoder = encoder
        self._trusts_options = trusts_options
        self._kinds: tuple[Kind, ...] = () if vision is None else tuple(vision.marks)

    def marks(self, *, literal_is_text: bool) -> MediaMarks | None:
        """``literal_is_text``: as `MediaMarks.literal_is_text`. None for a text model."""
        if self._vision is None:
            return None
        by_kind: dict[Kind, Mark] = {kind: Mark(*shown) for kind, shown in self._vision.marks.items()}
        return MediaMarks(by_kind, literal_is_text)

    def parts(self, request: ChatTemplateFields) -> list[ImagePart]:
        """In the prompt's order; empty for a text model, which refuses them itself. Raises BadRequest."""
        return [] if self._vision is None else image_parts(request.messages, self._kinds)

    def requested(
        self, chat: ChatCompletionRequest | TokenizeChatRequest, parts: list[ImagePart]
    ) -> RequestedImages:
        """``parts``: those of the chat, at least one. Raises BadRequest."""
        assert self._vision is not None
        self.check_options(chat)
        try:
            preparation = self._vision.prepared_with(chat.mm_processor_kwargs, chat.media_io_kwargs)
            videos = self._vision.videos_with(chat.mm_processor_kwargs, chat.media_io_kwargs, preparation)
        except ValueError as error:
            raise invalid(str(error), getattr(error, "param", None)) from None
        salt = chat.cache_salt if isinstance(chat, ChatCompletionRequest) else None
        check_fits = partial(self._encoder.check_fits, exact=False)
        return RequestedImages(parts, preparation, videos, salt, check_fits)

    def check_options(self, request: ChatTemplateFields) -> None:
        """Raises BadRequest for options that are not trusted."""
        check_media_options(request, trusted=self._trusts_options)

    def check_given(self, request: ChatTemplateFields, given: Sequence[object]) -> None:
        """Raises BadRequest for images that the caller has not brought."""
        if given:
            return
        parts = self.parts(request)
        if parts:
            raise BadRequest(f"{parts[0].param}: its image is needed", param=parts[0].param)

    def ignored(self, request: ChatTemplateFields, images: Sequence[PromptImage]) -> list[str]:
        """What to tell the client of details that have no effect."""
        return ignored_details(self.parts(request)) if images else []

    def placed(
        self, prompt: EncodedPrompt, images: Sequence[PromptImage], options: EncodeOptions
    ) -> tuple[EncodedPrompt, Sequence[Range]]:
        """The prompt with the images' tokens in it, cut again as ``options`` say, and where those tokens are.
        Raises BadRequest, also for a cut that leaves an image less than whole."""
        if not images:
            return prompt, ()
        assert self._vision is not None
        places = [each.image.replacement for each in images]
        ids, ranges = self.expanded(prompt.token_ids, places)
        if (kept := self._encoder.kept(options, len(ids))) is not None:
            try:
                ids, ranges = self._vision.cut(ids, ranges, places, kept)
            except ValueError as error:
                name = "truncate_prompt_tokens"
                raise invalid(f"{name}={options.keep} would cut off {error}", name, options.keep) from None
        self._encoder.check_fits(len(ids))
        return EncodedPrompt(PromptIds.of(ids)), ranges

    def expanded(
        self, ids: Sequence[int], places: Sequence[Replacement]
    ) -> tuple[list[int], Sequence[Range]]:
        """As `placed`, however long it becomes. Raises BadRequest."""
        assert self._vision is not None
        try:
            return self._vision.expand(ids, places)
        except ValueError as error:
            raise BadRequest(
                f"{error}: a text holds the place of one, the template leaves one out, or it was cut off",
                param="messages",
            ) from None

    def moved(
        self, ranges: Sequence[Range], whole: EncodedPrompt, continued: EncodedPrompt
    ) -> Sequence[Range]:
        """Where the images of ``whole`` are in what goes on from a client's IDs. Raises BadRequest."""
        if not ranges or continued is whole:
            return ranges
        assert self._vision is not None
        try:
            return self._vision.moved(ranges, whole.token_ids, continued.token_ids)
        except ValueError as error:
            raise BadRequest(str(error), param="continuation") from None

    def given(
        self,
        request: ChatCompletionRequest,
        images: Sequence[PromptImage],
        ranges: Sequence[Range],
        prompt: EncodedPrompt,
    ) -> Features | Pictures | None:
        """What an engine is given for the images at ``ranges`` of the prompt."""
        if not images:
            return None
        assert self._vision is not None
        return self._vision.given(images, ranges, ids=prompt.ids, payload=request.mm_payload)
