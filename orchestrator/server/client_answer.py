"""What one client is answered: the frames of a stream and its end, or one body, and the usage in them.

A whole answer is what decode sent for all runs, through one derender call, into one response body.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.core.assembly import merged_generate_response
from orchestrator.core.dialects import Dialect, StreamEnd, UnreadableAnswer
from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.usage import RunUsage, Usage, total
from orchestrator.hops.derender import REQUEST_FIELDS
from orchestrator.hops.transport import garbled
from orchestrator.server.intake import ClientRequest

if TYPE_CHECKING:
    from orchestrator.server.run import Run


class ClientAnswer:
    """``runs``: the exchange's own list. ``prompts``: one, or several of completions, known once render has
    answered."""

    def __init__(
        self, request: ClientRequest, response_id: str, dialect: Dialect, runs: Sequence[Run]
    ) -> None:
        self.dialect = dialect
        self.response_id = response_id
        self.created = int(time.time())
        self.endpoint = request.endpoint
        self.request_json = msgspec.Raw(request.body)
        self.requested_model = request.model
        self.model = request.model
        """As it is served."""
        self.return_token_ids = request.return_token_ids
        self.prompts: Sequence[RenderedPrompt] = ()
        self.tells_usage = False
        """At the end of a stream."""
        self._tells_usage_all_along = False
        self._runs = runs
        self._counted: Usage | None = None

    def rendered(self, prompts: Sequence[RenderedPrompt]) -> None:
        self.prompts = prompts
        self.tells_usage = prompts[0].include_usage or self.dialect.ends_with_usage
        self._tells_usage_all_along = prompts[0].include_usage and prompts[0].continuous_usage

    # ---- usage ---------------------------------------------------------------------------------------------

    @property
    def usage(self) -> Usage:
        """So far, or what has been counted for the whole."""
        if self._counted is not None:
            return self._counted
        return total(
            [len(prompt.token_ids) for prompt in self.prompts],
            [self._cached_tokens],
            [run.usage for run in self._runs],
            reasoning=any(run.usage.reasoning_tokens is not None for run in self._runs),
        )

    def settle_usage(self) -> None:
        """It does not change any more."""
        self._counted = self.usage

    @property
    def _prompt_tokens(self) -> int:
        return sum(len(prompt.token_ids) for prompt in self.prompts)

    @property
    def _cached_tokens(self) -> int | None:
        """Of the first choice of each prompt: later choices find what the first one left in the cache."""
        known = [run.cached_tokens for run in self._runs if run.choice == 0 and run.cached_tokens is not None]
        return sum(known) if known else None

    # ---- a stream ------------------------------------------------------------------------------------------

    def frames(self, events: Sequence[msgspec.Raw], usage: RunUsage) -> bytes:
        """What derender made of one output of a run. Raises ``HopError`` for what is not of its API."""
        so_far = None
        if self._tells_usage_all_along:
            so_far = Usage(
                self._prompt_tokens, usage.completion_tokens, self._cached_tokens, usage.reasoning_tokens
            )
        try:
            return self.dialect.frames(events, so_far)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise garbled("derender", self.response_id, error) from error

    def end(self, extra: dict[str, Any]) -> bytes:
        """The last frames. ``extra``: fields of our own."""
        usage = self.usage if self.tells_usage else None
        return self.dialect.end(StreamEnd(self.response_id, self.created, self.model, usage, extra))

    # ---- one body ------------------------------------------------------------------------------------------

    def derender_request(self) -> dict[str, Any]:
        replies = [self._reply(prompt) for prompt in self.prompts]
        counts = [len(prompt.token_ids) for prompt in self.prompts]
        ids = [prompt.fields["token_ids"] for prompt in self.prompts]
        request = {"model": self.requested_model, REQUEST_FIELDS[self.endpoint]: self.request_json}
        if self.endpoint != "completions":
            return request | {
                "generate_response": replies[0],
                "prompt_tokens": counts[0],
                "prompt_token_ids": ids[0],
            }
        return request | {"generate_responses": replies, "prompt_tokens": counts, "prompt_token_ids": ids}

    def read(self, body: bytes) -> bytes:
        """Derender's response under our id and time, with usage completed by what only we know.

        Completion tokens are derender's: its count ends at a stop string, decode may have sent more.
        Raises ``HopError``.
        """
        try:
            counted = self.dialect.counted(body)
        except UnreadableAnswer as error:
            raise garbled("derender", self.response_id, error) from error
        self._counted = Usage(
            self._prompt_tokens, counted.completion_tokens, self._cached_tokens, counted.reasoning_tokens
        )
        return self.dialect.whole(body, self.response_id, self.created, self._counted)

    def record(self, fingerprint: str | None) -> dict[str, Any]:
        """`render_tier.protocol.record`: what derender is given, and how a stream was cut."""
        replies = []
        for prompt in self.prompts:
            reply = self._reply(prompt)
            for choice, run in zip(reply["choices"], self._runs_of(prompt), strict=True):
                choice["chunk_lens"] = run.chunk_lens or [len(run.output.token_ids)]
                choice["weight_versions"] = run.output.weight_versions
            replies.append(reply)
        return {"fingerprint": fingerprint, "model": self.requested_model, "generate_responses": replies}

    def _runs_of(self, prompt: RenderedPrompt) -> list[Run]:
        return [run for run in self._runs if run.prompt is prompt]

    def _reply(self, prompt: RenderedPrompt) -> dict[str, Any]:
        runs = self._runs_of(prompt)
        usage = total(
            [len(prompt.token_ids)], [runs[0].cached_tokens], [run.usage for run in runs], reasoning=False
        )
        return merged_generate_response(
            self.response_id,
            self.created,
            [run.output for run in runs],
            usage,
            prompt_token_ids=prompt.fields["token_ids"] if self.return_token_ids else None,
            prompt_logprobs=runs[0].prompt_logprobs,
        )
