"""One choice's output through derender, whatever happens to render members.

A stream is read in a session where a member offers one, else by single calls. In a session the last snapshot
and the output since are kept here, and when the member dies or moves away the stream goes on with another:
the output since is read there again, and its answer, which the client has, is thrown away. Derender gives the
same text for every chunking, so nothing is lost, repeated or changed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.core.assembly import engine_choice
from orchestrator.core.coalescing import Output
from orchestrator.hops.derender import Context, Derendered, StreamState, derendered
from orchestrator.hops.errors import HopError, NoMembers, Refused, TimedOut
from orchestrator.hops.messages import present
from orchestrator.hops.sessions import Link
from orchestrator.pool.member import Member
from orchestrator.server.attempts import on_render_members
from render_tier.protocol.session import Answer

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange

ELSEWHERE = frozenset({404, 409})
"""What a session answers about a stream, or a context, that it does not hold (any more)."""


class DerenderStream:
    """Choice ``index`` of ``exchange``. ``prompt_token_ids``: JSON of the prompt's IDs."""

    def __init__(
        self, exchange: Exchange, index: int, prompt_token_ids: msgspec.Raw, prompt_tokens: int
    ) -> None:
        self._exchange = exchange
        self._services = exchange.services
        self._index = index
        self._context = Context(
            endpoint=exchange.endpoint,
            model=exchange.requested_model,
            request=exchange.request_json,
            prompt_token_ids=prompt_token_ids,
            prompt_tokens=prompt_tokens,
        )
        self._saved = StreamState()
        self._begun = False
        self._position = 0
        """Tokens of the choice that have been read."""
        self._since = Output()
        """What a session has read since ``_saved``."""
        self._since_tokens = 0
        self._link: Link | None = None
        self._member: Member | None = None
        self._number = 0
        self._tried: set[str] = set()
        self._sessions = self._services.sessions
        """None from the time on when single calls are used."""

    def __repr__(self) -> str:
        return f"<DerenderStream {self._index} {self._position=} {self._since_tokens=} {self._link!r}>"

    async def read(self, output: Output) -> Derendered:
        """Derender the next output. Raises ``HopError`` when no member can."""
        attempts = self._services.settings.policy.derender_attempts
        while self._sessions is not None:
            member = self._member
            try:
                answer = await self._in_session(output)
            except HopError as error:
                moved = isinstance(error, Refused) and error.status in ELSEWHERE
                member = self._member or member
                self._leave()
                if member is not None and not moved:
                    self._services.note_failure(self._services.render_pool, member, error)
                    self._tried.add(member.url)
                attempts -= 1
                if not (moved or error.retry_safe or isinstance(error, TimedOut)):
                    raise
                self._services.metrics.retries.labels("derender").inc()
                if attempts < 1 or moved:
                    self._sessions = None
                continue
            if answer is None:
                self._sessions = None
            else:
                return answer
        return await self._by_calls(output)

    def close(self) -> None:
        """The stream is over; nothing is read any more."""
        self._leave()

    # ---- in a session --------------------------------------------------------------------------------------

    async def _in_session(self, output: Output) -> Derendered | None:
        """None where no session is offered."""
        if self._link is not None and (self._link.moving or self._link.closed):
            self._tried.add(self._link.url)
            self._leave()
        frames: list[dict[str, Any]] = []
        if self._link is None:
            start = await self._enter()
            if start is None:
                return None
            frames.append(start)
        link, member = self._link, self._member
        assert link is not None
        assert member is not None
        frame = {"stream": self._number, "chunk": self._chunk(output, self._position)}
        if frames and "chunk" not in frames[0]:
            frames[0] |= frame
        else:
            frames.append(frame)
        budget = self._exchange.budget(self._services.settings.timeouts.derender)
        with member.busy():
            calls = [link.call(frame) for frame in frames]
            try:
                async with asyncio.timeout(budget):
                    answers = [await call for call in calls]
            except TimeoutError:
                raise TimedOut("derender", "the derender hop timed out", member=member.url) from None
            finally:
                for call in calls:
                    # Of several calls only the first failure is looked at.
                    if not call.cancel() and not call.cancelled():
                        call.exception()
        self._services.render_pool.succeeded(member)
        return self._took(output, answers[-1])

    async def _enter(self) -> dict[str, Any] | None:
        """Begin on some member, from what is saved: the frame that opens the stream and reads again what was
        read since."""
        assert self._sessions is not None
        member = self._services.render_pool.choose(self._tried)
        if member is None:
            raise NoMembers("derender", "there is no render tier")
        self._member = member
        link = await self._sessions.link(member.url)
        if link is None:
            self._member = None
            return None
        self._link, self._number = link, link.number()
        self._services.integrity.session_streams += 1
        context = self._context
        start = {
            "endpoint": context.endpoint,
            "request_id": self._exchange.response_id,
            "model": context.model,
            "created": self._exchange.created,
            "request": context.request,
            "prompt_token_ids": context.prompt_token_ids,
            "prompt_tokens": context.prompt_tokens,
        }
        if self._saved.state is not None:
            start["stream_state"] = self._saved.state
        frame: dict[str, Any] = {"stream": self._number, "open": start}
        if self._since_tokens or self._since.finish_reason is not None:
            frame["chunk"] = self._chunk(self._since, self._position - self._since_tokens)
        return frame

    def _took(self, output: Output, answer: Answer) -> Derendered:
        self._begun = True
        self._position += len(output.token_ids)
        state = present(answer.stream_state)
        if state is not None:
            # Later calls may need it long after the message that it is a part of.
            self._saved.state = msgspec.Raw(bytes(state))
            self._since, self._since_tokens = Output(), 0
        else:
            self._since.add(output)
            self._since_tokens += len(output.token_ids)
        if answer.derender is not None:
            self._saved.digest = answer.derender.context
        return derendered(answer.chunk, answer.derender, self._context.endpoint)

    def _leave(self) -> None:
        if self._link is not None:
            self._link.end(self._number)
            self._services.integrity.session_streams -= 1
        self._link = self._member = None

    # ---- by single calls -----------------------------------------------------------------------------------

    async def _by_calls(self, output: Output) -> Derendered:
        if self._since_tokens or self._since.finish_reason is not None:
            # Answered before, in a session that is lost.
            await self._call(self._since, self._position - self._since_tokens)
            self._since, self._since_tokens = Output(), 0
        answer = await self._call(output, self._position)
        self._begun = True
        self._position += len(output.token_ids)
        return answer

    async def _call(self, output: Output, position: int) -> Derendered:
        """One streaming derender call, on another member when the first fails."""
        exchange, services = self._exchange, self._services
        chunk = {
            "request_id": exchange.response_id,
            "created": exchange.created,
            "output_mode": "tokens",
            **self._chunk(output, position),
        }
        budget = exchange.budget(services.settings.timeouts.derender)

        async def call(url: str) -> Derendered:
            return await services.derender_client.chunk(
                url, self._context, self._saved, chunk, exchange.render_headers, budget
            )

        return await on_render_members(services, "derender", services.settings.policy.derender_attempts, call)

    def _chunk(self, output: Output, position: int) -> dict[str, Any]:
        chunk: dict[str, Any] = {"choices": [engine_choice(self._index, output)], "position": position}
        if not self._begun and self._exchange.return_token_ids:
            chunk["prompt_token_ids"] = self._context.prompt_token_ids
        return chunk
