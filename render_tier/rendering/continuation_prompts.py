"""Prompts of requests with a ``continuation``: checked, continued or not, and what the reply says of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from render_tier.core.table import ReasoningFormat
from render_tier.core.vocabulary import Vocabulary
from render_tier.model.engines import TokenEngine
from render_tier.protocol.chat import ChatCompletionRequest, Continuation
from render_tier.protocol.errors import ApiError, ContinuationRefused
from render_tier.protocol.generate import ContinuationReport
from render_tier.protocol.validation import invalid
from render_tier.rendering.continuation import Continued, common_length, continued
from render_tier.rendering.continuation_reasons import DETAILS, Diagnosis, Difference, Given
from render_tier.rendering.encoder import EncodedPrompt, PromptEncoder
from render_tier.rendering.token_ids import PromptIds, part_of

EXCLUDED = {
    "truncate_prompt_tokens": "the prompt would not begin with the token IDs any more",
    "return_token_offsets": "token IDs that were given have no place in the templated text",
}
"""Fields that contradict a continuation -> why."""

Render = Callable[[ChatCompletionRequest], EncodedPrompt]


class ContinuedPrompts:
    """Thread-safe; keeps nothing between requests."""

    def __init__(
        self,
        encoder: PromptEncoder,
        vocabulary: Vocabulary,
        engine: TokenEngine,
        *,
        reasoning: ReasoningFormat | None,
        max_renders: int,
    ) -> None:
        """``reasoning``: of the reasoning parser. ``max_renders``: how many renders may be
        spent on finding the message that differs."""
        self._encoder = encoder
        self._vocabulary = vocabulary
        self._encode = partial(engine.ids, add_special_tokens=False)
        self._reasoning = reasoning
        self._max_renders = max_renders

    def check(self, request: ChatCompletionRequest) -> None:
        """Raises BadRequest for token IDs that no prompt may have, or fields that contradict them."""
        given = request.continuation
        if given is None:
            return
        for name, why in EXCLUDED.items():
            if getattr(request, name) not in (None, False):
                raise invalid(f"`continuation` cannot be used with `{name}`: {why}.", name)
        if (request.kv_transfer_params or {}).get("prompt_token_ids") is not None:
            raise invalid(
                "`continuation` cannot be used with `kv_transfer_params.prompt_token_ids`, which is a whole "
                "prompt.",
                "continuation",
            )
        if not given.prompt_token_ids:
            raise invalid(
                "`continuation.prompt_token_ids` must not be empty.", "continuation.prompt_token_ids"
            )
        self._encoder.check_fits(len(given.prompt_token_ids) + len(given.output_token_ids))
        self._encoder.check_ids(given.prompt_token_ids, "continuation.prompt_token_ids")
        self._encoder.check_ids(given.output_token_ids, "continuation.output_token_ids")

    def prompt(
        self, request: ChatCompletionRequest, given: Continuation, whole: EncodedPrompt, render: Render
    ) -> tuple[EncodedPrompt, ContinuationReport]:
        """``whole``: what the messages render to; ``render`` gives that of other requests.

        Raises BadRequest for a refused continuation that the request insists on, or one that does not fit.
        """
        ids, rendered = [*given.prompt_token_ids, *given.output_token_ids], whole.token_ids
        result = continued(ids, rendered, self._vocabulary, self._encode)
        if isinstance(result, Continued):
            return self._joined(ids, result), ContinuationReport(exact=True, kept_tokens=len(ids))
        closed = None
        if (
            given.output_token_ids
            and result.given == len(ids) - 1
            and self._swaps_special(ids, rendered, result.rendered)
        ):
            closed = continued(ids[:-1], rendered, self._vocabulary, self._encode)
        if isinstance(closed, Continued):
            ids.pop()
            prompt, kept = self._joined(ids, closed), len(ids)
        else:
            prompt, kept = whole, common_length(ids, rendered)
        diagnosis = Diagnosis(
            request.messages,
            Given(ids, len(given.prompt_token_ids)),
            rendered,
            self._vocabulary,
            partial(_render_other, render, request),
            reasoning=self._reasoning,
            max_renders=self._max_renders,
        )
        found = diagnosis.difference(result)
        if isinstance(closed, Continued):
            found = Difference("stop_token", found.message)
        report = ContinuationReport(
            exact=False,
            kept_tokens=kept,
            reason=found.reason,
            message=found.message,
            detail=DETAILS[found.reason],
        )
        if request.continuation_strict:
            raise _refused(report)
        return prompt, report

    def _swaps_special(self, given: list[int], rendered: list[int], place: int) -> bool:
        """Whether one special token, the last of those given, stands where the template writes another."""
        special = self._vocabulary.special_ids
        return given[-1] in special and place < len(rendered) and rendered[place] in special

    def _joined(self, ids: list[int], result: Continued) -> EncodedPrompt:
        joined = PromptIds([part_of(ids), part_of(result.tail)])
        self._encoder.check_fits(len(joined))
        return EncodedPrompt(joined)


def _render_other(
    render: Render, request: ChatCompletionRequest, messages: list[dict[str, Any]]
) -> list[int] | None:
    try:
        return render(request.model_copy(update={"messages": messages})).token_ids
    except ApiError:
        return None


def _refused(report: ContinuationReport) -> ContinuationRefused:
    where = "continuation" if report.message is None else f"messages.{report.message}"
    return ContinuationRefused(
        f"{report.reason}: {where}: {report.detail}. The prompt does not go on from the token IDs given.",
        param=where,
    )
