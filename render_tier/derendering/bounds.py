"""What a client may send to derender: counts and IDs checked before any work is done."""

from __future__ import annotations

from collections.abc import Sequence

from render_tier.derendering.served import ServedModel, check_ids
from render_tier.derendering.settings import DerenderSettings
from render_tier.protocol.derender import TokensChoice, TokensResponse
from render_tier.protocol.errors import BadRequest


class Bounds:
    def __init__(self, model: ServedModel, settings: DerenderSettings) -> None:
        self._model = model
        self._settings = settings

    def responses(self, responses: Sequence[TokensResponse]) -> None:
        """Raises BadRequest for whole answers that are out of bounds."""
        most = self._settings.max_choices
        if len(responses) > most:
            raise BadRequest(f"generate_responses count ({len(responses)}) exceeds server maximum ({most}).")
        for response in responses:
            if len(response.choices) > most:
                raise BadRequest(
                    f"choices count ({len(response.choices)}) in response '{response.request_id}' "
                    f"exceeds server maximum ({most})."
                )
            for choice in response.choices:
                self.choice(choice)
            limit = self._model.max_model_len
            if response.prompt_logprobs is not None and len(response.prompt_logprobs) > limit:
                raise BadRequest(
                    f"prompt_logprobs length ({len(response.prompt_logprobs)}) in response "
                    f"'{response.request_id}' exceeds max_model_len ({limit})."
                )

    def choice(self, choice: TokensChoice) -> None:
        limit = self._model.max_model_len
        if choice.token_ids:
            if len(choice.token_ids) > limit:
                raise BadRequest(
                    f"token_ids length ({len(choice.token_ids)}) in choice {choice.index} "
                    f"exceeds max_model_len ({limit})."
                )
            check_ids(self._model, choice.token_ids, "token_ids")
        entries = choice.logprobs.content if choice.logprobs is not None else None
        if not entries:
            return
        if len(entries) > limit:
            raise BadRequest(
                f"logprobs.content length ({len(entries)}) in choice {choice.index} "
                f"exceeds max_model_len ({limit})."
            )
        most = self._settings.max_logprobs
        ids = []
        for entry in entries:
            # The sampled token leads the list and is not one of the client's top_logprobs.
            if 0 <= most < len(entry.top_logprobs) - 1:
                raise BadRequest(
                    f"top_logprobs count ({len(entry.top_logprobs)}) in choice {choice.index} "
                    f"exceeds max_logprobs ({most})."
                )
            ids.append(entry.token_id)
            ids += [top.token_id for top in entry.top_logprobs]
        check_ids(self._model, ids, "logprobs.content.token_id")

    def output_length(self, prompt_length: int, before: int, delta: int) -> None:
        """Raises BadRequest when a stream grows beyond the model's context."""
        limit = self._model.max_model_len
        if prompt_length + before + delta > limit:
            raise BadRequest(
                f"prompt_token_ids length ({prompt_length}) plus output_token_ids length ({before}) "
                f"plus delta ({delta}) exceeds max_model_len ({limit})."
            )
