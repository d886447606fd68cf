"""Whole answers: a finished generate reply in, a chat or text completion, message or response out."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw

from render_tier.derendering.anthropic import whole_message
from render_tier.derendering.bounds import Bounds
from render_tier.derendering.chat import message
from render_tier.derendering.context import Context, Kind
from render_tier.derendering.contexts import Contexts
from render_tier.derendering.logprobs import completion_logprobs
from render_tier.derendering.output import Output, Step
from render_tier.derendering.pieces import (
    content,
    logprobs,
    missing,
    needs_request,
    passed_on,
    prompt_length,
    token_ids,
)
from render_tier.derendering.responses import whole_response
from render_tier.derendering.served import ServedModel
from render_tier.derendering.usage import summed, usage
from render_tier.protocol.anthropic_answers import MessageOut
from render_tier.protocol.derender import (
    ChatDerender,
    CompletionDerender,
    MessagesDerender,
    ResponsesDerender,
    TokensResponse,
    given,
)
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.response_answers import Response
from render_tier.protocol.responses import ChatChoice, ChatCompletion, Completion, CompletionChoice
from render_tier.protocol.validation import misshapen


class WholeAnswers:
    """``created`` gives the time for an engine answer that has none. Raises ApiError."""

    def __init__(
        self,
        model: ServedModel,
        bounds: Bounds,
        contexts: Contexts,
        created: Callable[[int | None], int],
    ) -> None:
        self._model = model
        self._bounds = bounds
        self._contexts = contexts
        self._created = created

    def chat(self, request: ChatDerender, model: str) -> ChatCompletion:
        response, context = self._opened(request, "chat")
        choices = []
        completion_tokens = reasoning_tokens = 0
        for choice in response.choices:
            output = Output(context, self._model.eos_token_ids)
            step = output.advance(choice, whole=True)
            completion_tokens += step.used
            reasoning_tokens += output.reasoning_tokens
            choices.append(
                ChatChoice(
                    index=choice.index,
                    message=message(step.events, context, response.request_id, choice.index),
                    logprobs=logprobs(step),
                    finish_reason=step.finish_reason,
                    stop_reason=step.stop_reason,
                    token_ids=token_ids(choice, step, context),
                )
            )
        return ChatCompletion(
            id=response.request_id,
            created=self._created(response.created),
            model=model,
            choices=choices,
            usage=usage(
                prompt_length(request.prompt_tokens, context, response.usage),
                completion_tokens,
                response.usage,
                reasoning_tokens if context.counts_reasoning else None,
            ),
            prompt_logprobs=response.prompt_logprobs,
            prompt_token_ids=passed_on(response.prompt_token_ids, context),
            kv_transfer_params=response.kv_transfer_params,
            metrics=response.metrics,
        )

    def responses(self, request: ResponsesDerender, model: str) -> Response:
        response, context = self._opened(request, "responses")
        output, step = self._only_choice(response, context, "a response")
        count = prompt_length(request.prompt_tokens, context, response.usage)
        return whole_response(output, step, response, self._created(response.created), count, model)

    def messages(self, request: MessagesDerender, model: str) -> MessageOut:
        response, context = self._opened(request, "messages")
        output, step = self._only_choice(response, context, "a message")
        count = prompt_length(request.prompt_tokens, context, response.usage)
        return whole_message(output, step, response, count, model)

    def _opened(
        self, request: ChatDerender | ResponsesDerender | MessagesDerender, kind: Kind
    ) -> tuple[TokensResponse, Context]:
        response = request.generate_response
        if response is None:
            raise missing("generate_response")
        self._bounds.responses([response])
        prompt = request.prompt_token_ids if given(request.prompt_token_ids) else response.prompt_token_ids
        if not given(request.request) and request.context is None and self._contexts.has_parser:
            raise needs_request(kind)
        return response, self._contexts.of_request(kind, request.request, prompt, request.context)

    def _only_choice(self, response: TokensResponse, context: Context, what: str) -> tuple[Output, Step]:
        if len(response.choices) != 1:
            raise BadRequest(f"{what} is made of one choice, not of {len(response.choices)}")
        output = Output(context, self._model.eos_token_ids)
        return output, output.advance(response.choices[0], whole=True)

    def completion(self, request: CompletionDerender, model: str) -> Completion:
        responses = request.generate_responses
        if responses is None:
            raise missing("generate_responses")
        if not responses:
            raise BadRequest("generate_responses must not be empty", param="generate_responses")
        self._bounds.responses(responses)
        prompts = self._prompt_lists(request, len(responses))
        counts = request.prompt_tokens
        if counts is not None and (not isinstance(counts, list) or len(counts) != len(responses)):
            raise BadRequest(
                "prompt_tokens must be a list parallel to generate_responses", param="prompt_tokens"
            )
        choices: list[CompletionChoice] = []
        prompt_tokens = completion_tokens = 0
        for number, response in enumerate(responses):
            prompt = prompts[number] if given(prompts[number]) else response.prompt_token_ids
            context = self._contexts.of_request("completion", request.request, prompt, request.context)
            prompt_tokens += prompt_length(counts[number] if counts else None, context, response.usage)
            for choice in response.choices:
                step = Output(context, self._model.eos_token_ids).advance(choice, whole=True)
                completion_tokens += step.used
                entries = None if step.logprobs is None else completion_logprobs(step.logprobs, 0)[0]
                choices.append(
                    CompletionChoice(
                        index=len(choices),
                        text=content(step.events),
                        logprobs=entries,
                        finish_reason=step.finish_reason,
                        stop_reason=step.stop_reason,
                        token_ids=token_ids(choice, step, context),
                        prompt_logprobs=response.prompt_logprobs,
                        prompt_token_ids=passed_on(response.prompt_token_ids, context),
                    )
                )
        first = responses[0]
        same = all(other.kv_transfer_params == first.kv_transfer_params for other in responses[1:])
        return Completion(
            id=first.request_id,
            created=self._created(first.created),
            model=model,
            choices=choices,
            usage=usage(prompt_tokens, completion_tokens, summed(responses), None),
            kv_transfer_params=first.kv_transfer_params if same else None,
            metrics=first.metrics if len(responses) == 1 else None,
        )

    def _prompt_lists(self, request: CompletionDerender, count: int) -> list[Raw]:
        if not given(request.prompt_token_ids):
            return [Raw()] * count
        try:
            prompts = msgspec.json.decode(request.prompt_token_ids, type=list[Raw])
        except msgspec.MsgspecError as error:
            raise misshapen(
                [{"type": "list_type", "loc": ("prompt_token_ids",), "msg": str(error)}]
            ) from None
        if len(prompts) != count:
            raise BadRequest(
                f"prompt_token_ids length ({len(prompts)}) must match generate_responses length ({count})",
                param="prompt_token_ids",
            )
        return prompts
