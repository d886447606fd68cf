"""A whole answer: what decode sent for all runs, through one derender call, into one response body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.core.assembly import merged_generate_response
from orchestrator.core.dialects import DIALECTS, UnreadableAnswer
from orchestrator.core.legs import RenderedPrompt
from orchestrator.core.usage import Usage, total
from orchestrator.hops.derender import REQUEST_FIELDS
from orchestrator.hops.render import Endpoint
from orchestrator.hops.transport import garbled
from orchestrator.server.run import Run


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """What the request and its runs contribute; one entry of ``prompts`` per rendered prompt."""

    endpoint: Endpoint
    response_id: str
    created: int
    requested_model: str | None
    request_json: msgspec.Raw
    return_token_ids: bool
    prompts: Sequence[RenderedPrompt]
    runs: Sequence[Run]

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

    def read(self, body: bytes, cached_tokens: int | None) -> tuple[bytes, Usage]:
        """Derender's response under our id and time, with usage completed by what only we know.

        Completion tokens are derender's: its count ends at a stop string, decode may have sent more.
        Raises ``HopError``.
        """
        dialect = DIALECTS[self.endpoint]
        try:
            counted = dialect.counted(body)
        except UnreadableAnswer as error:
            raise garbled("derender", self.response_id, error) from error
        usage = Usage(
            sum(len(prompt.token_ids) for prompt in self.prompts),
            counted.completion_tokens,
            cached_tokens,
            counted.reasoning_tokens,
        )
        return dialect.whole(body, self.response_id, self.created, usage), usage

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
        return [run for run in self.runs if run.prompt is prompt]

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
