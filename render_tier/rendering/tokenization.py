"""Token IDs for their own sake: of a text or a chat, how many a chat has, and what IDs spell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from render_tier.model import ModelAssets
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeResponse,
    TokenizeTextRequest,
)
from render_tier.rendering.chat_prompts import ChatPrompts
from render_tier.rendering.encoder import PromptEncoder
from render_tier.rendering.request_media import RequestMedia

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.families import Replacement


class Tokenization:
    """Thread-safe; keeps nothing between requests."""

    def __init__(
        self, assets: ModelAssets, prompts: ChatPrompts, media: RequestMedia, encoder: PromptEncoder
    ) -> None:
        self._assets = assets
        self._prompts = prompts
        self._media = media
        self._encoder = encoder

    def count(self, chat: ChatCompletionRequest, places: Sequence[Replacement]) -> int:
        """Of the chat's prompt. ``places``: of its images. Raises BadRequest."""
        self._prompts.check_fields(chat)
        kwargs = self._prompts.template_kwargs(chat)
        prompt = self._prompts.prompt(chat, kwargs, reserve_output=False)[0]
        if not places:
            return len(prompt.ids)
        count = len(self._media.expanded(prompt.token_ids, places)[0])
        self._encoder.check_fits(count)
        return count

    def tokenize(
        self, request: TokenizeTextRequest | TokenizeChatRequest, places: Sequence[Replacement]
    ) -> TokenizeResponse:
        """``places``: of the chat's images. Raises BadRequest."""
        if isinstance(request, TokenizeChatRequest):
            ids = self._chat_ids(request, places)
        else:
            ids = self._encoder.plain_ids(request.prompt, add_special_tokens=request.add_special_tokens)
        strings = list(map(self._assets.tokenizer.piece, ids)) if request.return_token_strs else None
        return TokenizeResponse(len(ids), self._assets.max_model_len, ids, strings)

    def _chat_ids(self, request: TokenizeChatRequest, places: Sequence[Replacement]) -> list[int]:
        self._prompts.check_trust(request)
        self._media.check_options(request)
        self._media.check_given(request, places)
        ids = self._prompts.ids(request)
        return self._media.expanded(ids, places)[0] if places else ids

    def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """IDs that the tokenizer does not have spell nothing."""
        return DetokenizeResponse(self._assets.vocabulary.text(request.tokens))
