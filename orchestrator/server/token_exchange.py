"""A request for token IDs (``POST /inference/v1/generate``): the same runs through the same engines as any
other, without a render tier on either side of them.

The prompt is the client's, its answer what the engines sample, so the answer is complete as soon as they are
done. A client may abort by the id of its answer, which it can choose (``X-Request-Id``, ``request_id``) and
which is never an id inside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import perf_counter

from orchestrator.core import token_out
from orchestrator.core.access import OUTPUT_LIMITS
from orchestrator.core.assembly import with_fields
from orchestrator.core.coalescing import Output
from orchestrator.core.request_table import Event
from orchestrator.core.token_in import TokenRequest, read_token_request
from orchestrator.core.token_out import PromptEcho
from orchestrator.hops.derender import Derendered
from orchestrator.hops.render import Rendered
from orchestrator.server.endpoints import CompletionEndpoint
from orchestrator.server.exchange import Exchange
from orchestrator.server.intake import ClientRequest, public_id
from orchestrator.server.output import OutputPump, Reader
from orchestrator.server.run import Run
from orchestrator.server.services import Services
from render_tier.protocol.errors import ApiError, BadRequest


class GenerateEndpoint(CompletionEndpoint):
    def __init__(self) -> None:
        super().__init__("generate")

    def _exchange(self, services: Services, request: ClientRequest) -> Exchange:
        return TokenExchange(services, request, read_token_request(request.body))


class TokenExchange(Exchange):
    def __init__(self, services: Services, request: ClientRequest, asked: TokenRequest) -> None:
        """Raises ``ApiError`` for what the client's key, or the settings, do not allow."""
        if request.access is not None:
            limited = {name: asked.asked[name] for name in OUTPUT_LIMITS if name in asked.asked}
            request.access.check({"model": request.model, **limited})
        if asked.prompt.media and not services.settings.policy.client_features:
            raise BadRequest(
                "features are not taken from clients here: send images to /v1/chat/completions",
                param="features",
            )
        super().__init__(services, request, request.client_id or public_id(asked.request_id))
        self._asked = asked
        self._echo: PromptEcho | None = None
        """To be told with the first chunk, or in the whole answer."""
        self._finished: set[int] = set()
        """Choices whose finish reason the client has been told."""
        if asked.return_token_ids:
            self._echo = PromptEcho(asked.prompt.fields["token_ids"], asked.mm_placeholders)

    def abort(self) -> None:
        """Answer with what has been sampled so far, each unfinished choice as "abort". Does nothing once
        there is an answer."""
        if self._outcome is not None:
            return
        self._outcome = "client_gone"
        self.streaming = self._asked.prompt.stream  # which the plan may not have said yet
        self.timing.mark("finished", perf_counter())
        if self.streaming:
            for run in self.runs:
                if run.index not in self._finished:
                    self.emit([self._chunk(run, Output(finish_reason="abort"))], run.usage)
            self._end_stream()
        else:
            for run in self.runs:
                run.output.finish_reason = run.output.finish_reason or "abort"
            self.outbox.put(self._whole())
        self.outbox.end()
        self._post_all(Event.CLIENT_GONE)

    def reader(self, run: Run, pump: OutputPump) -> Reader:
        return _Chunks(lambda output: self._chunk(run, output), pump.read)

    async def _render(self, run: Run) -> None:
        try:
            await self.enter()
            limits = self.services.deployment.engine_limits
            self._check_vocabulary()
            prompt = self._asked.filled(limits.max_model_len)
        except ApiError as error:
            run.post(Event.RENDER_FAILED, error)
            return
        self._begin_runs(run, Rendered([prompt], None))

    def _check_vocabulary(self) -> None:
        """Against the render tier's too, which reports it where engines in production do not; no other
        client brings IDs of its own. Raises ``BadRequest``."""
        sizes = [member.capabilities.known.vocab_size for member in self.services.render_pool.members]
        size = min((size for size in sizes if size is not None), default=None)
        if size is not None and max(self._asked.prompt.token_ids) >= size:
            raise BadRequest(
                f"token id {max(self._asked.prompt.token_ids)} is outside the vocabulary (0 to {size - 1})",
                param="token_ids",
            )

    async def _answer_whole(self) -> None:
        self.timing.mark("output_complete", perf_counter())
        self.answer.settle_usage()
        self.timing.mark("first_output", perf_counter())
        self.timing.mark("finished", perf_counter())
        body = self._whole()
        if extra := self._extra():
            body = with_fields(body, extra)
        self.outbox.put(body)
        self._post_all(Event.FLUSHED)

    def _whole(self) -> bytes:
        return token_out.whole(
            self.answer.response_id,
            self.answer.created,
            self.answer.model,
            [run.output for run in self.runs],
            self.answer.usage,
            echo=self._echo,
            prompt_logprobs=self.runs[0].prompt_logprobs,
        )

    def _chunk(self, run: Run, output: Output) -> token_out.Raw:
        echo, self._echo = self._echo, None
        if output.finish_reason is not None:
            self._finished.add(run.index)
        return token_out.chunk(self.answer.response_id, run.index, output, echo)


class _Chunks:
    """Output as chunks, at once: there is nothing to wait for."""

    def __init__(
        self, chunk: Callable[[Output], token_out.Raw], on_read: Callable[[Derendered], None]
    ) -> None:
        self._chunk = chunk
        self._on_read = on_read

    def read(self, output: Output) -> None:
        empty = not output.token_ids and output.finish_reason is None
        self._on_read(
            Derendered(
                () if empty else (self._chunk(output),),
                model=None,
                finished=output.finish_reason is not None,
                empty=empty,
                completion_tokens=None,
                reasoning_tokens=None,
            )
        )

    def close(self) -> None:
        pass


def abort(services: Services, mine: Callable[[str], bool], ids: Collection[str]) -> None:
    """Those requests for token IDs whose answers have one of the ``ids``, of a tenant that is ``mine``."""
    for exchange in list(services.exchanges):
        if not isinstance(exchange, TokenExchange) or exchange.answer.response_id not in ids:
            continue
        if mine(exchange.who.tenant):
            exchange.abort()
