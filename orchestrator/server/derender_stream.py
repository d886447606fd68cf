"""One choice's output through derender, whatever happens to render members.

A stream is read in a session where a member offers one, else by single calls. In a session the last snapshot
and the output since are kept here, and when the member dies or moves away the stream goes on with another:
the output since is read there again, and its answer, which the client has, is thrown away. Derender gives the
same text for every chunking, so nothing is lost, repeated or changed.

While a session is open and well, an output is one frame and its answer one callback. Everything else (the
opening, a lost member, single calls) takes time and is a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.core.assembly import engine_choice
from orchestrator.core.coalescing import Output
from orchestrator.hops.derender import Context, Derendered, StreamState, derendered
from orchestrator.hops.errors import HopError, NoMembers, Refused, TimedOut
from orchestrator.hops.messages import Logprobs, SessionChoice, SessionChunk, SessionFrame, present
from orchestrator.hops.sessions import Call, Link
from orchestrator.hops.transport import encode
from orchestrator.pool.member import Member
from orchestrator.server.attempts import on_render_members
from render_tier.protocol.session import Answer

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange

ELSEWHERE = frozenset({404, 409})
"""What a session answers about a stream, or a context, that it does not hold (any more)."""


class DerenderStream:
    """Choice ``index`` of ``exchange``. ``prompt_token_ids``: JSON of the prompt's IDs.

    ``prepare``, if called, comes first. One output at a time: ``read`` is answered by ``on_read`` or, when no
    member can, by ``on_failed``; never from inside ``read``, and not after ``close``. ``on_crash`` is told of
    what nobody foresaw.
    """

    def __init__(
        self,
        exchange: Exchange,
        index: int,
        prompt_token_ids: msgspec.Raw,
        prompt_tokens: int,
        *,
        on_read: Callable[[Derendered], None],
        on_failed: Callable[[HopError], None],
        on_crash: Callable[[Exception], None],
    ) -> None:
        self._exchange = exchange
        self._services = exchange.services
        self._index = index
        self._on_read = on_read
        self._on_failed = on_failed
        self._on_crash = on_crash
        self._context = Context(
            endpoint=exchange.answer.endpoint,
            model=exchange.answer.requested_model,
            request=exchange.answer.request_json,
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
        self._waiting: Call | None = None
        self._output = Output()
        """Being read."""
        self._work: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._span = exchange.span.hop("derender")

    def __repr__(self) -> str:
        return f"<DerenderStream {self._index} {self._position=} {self._since_tokens=} {self._link!r}>"

    def prepare(self) -> None:
        """Open the stream before there is output, which then need not wait until derender has read the
        request. Where that fails, the first output finds out why."""
        if self._sessions is not None:
            self._opening = self._services.supervisor.spawn(
                self._open(), f"derender {self._exchange.base_id}", self._on_crash
            )

    def read(self, output: Output) -> None:
        """Derender the next output."""
        link, member = self._link, self._member
        self._output = output
        if link is None or member is None or link.moving or link.closed:
            self._read_slowly(None)
            return
        member.active += 1
        frame = SessionFrame(self._number, chunk=self._session_chunk(output, self._position))
        self._waiting = link.submit(self._number, encode(frame), self._answered)

    def close(self) -> None:
        """The stream is over; nothing is read any more."""
        self._end_call()
        for task in (self._opening, self._work):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._opening = self._work = None
        self._leave()
        self._span.end()

    def _answered(self, answer: Answer | None, error: HopError | None) -> None:
        self._waiting = None
        self._member_in_use.active -= 1
        try:
            if answer is not None:
                try:
                    read = self._took(self._output, answer)
                except HopError as unreadable:
                    error = unreadable
                else:
                    self._services.render_pool.succeeded(self._member_in_use)
                    self._on_read(read)
                    return
            self._read_slowly(error)
        except Exception as crash:
            # Not the fault of the connection, which other streams share.
            self._services.supervisor.crashed(f"derender {self._exchange.base_id}", crash, self._on_crash)

    def _end_call(self) -> None:
        call, self._waiting = self._waiting, None
        if call is not None:
            call.drop()
            self._member_in_use.active -= 1

    @property
    def _member_in_use(self) -> Member:
        assert self._member is not None
        return self._member

    # ---- what takes time -----------------------------------------------------------------------------------

    def _read_slowly(self, failure: HopError | None) -> None:
        name = f"derender {self._exchange.base_id}"
        self._work = self._services.supervisor.spawn(
            self._work_on(self._output, failure), name, self._on_crash
        )

    async def _work_on(self, output: Output, failure: HopError | None) -> None:
        try:
            read = await self._read(output, failure)
        except HopError as error:
            self._span.end(error)
            self._on_failed(error)
        else:
            self._on_read(read)

    async def _open(self) -> None:
        try:
            start = await self._enter()
            if start is None:
                return
            assert self._link is not None
            with self._member_in_use.busy():
                await self._link.call(start)
        except HopError:
            if self._waiting is None and self._work is None:
                self._leave()

    async def _read(self, output: Output, failure: HopError | None) -> Derendered:
        """``failure`` is that of the first attempt, where it has been made. Raises ``HopError`` when no
        member can."""
        attempts = self._services.settings.policy.derender_attempts
        if self._opening is not None:
            await asyncio.wait([self._opening])
        member = self._member
        while self._sessions is not None:
            if failure is None:
                member = self._member
                try:
                    answer = await self._in_session(output)
                except HopError as error:
                    failure = error
                else:
                    if answer is not None:
                        return answer
                    self._sessions = None
                    break
            moved = isinstance(failure, Refused) and failure.status in ELSEWHERE
            member = self._member or member
            self._leave()
            if member is not None and not moved:
                self._services.note_failure(self._services.render_pool, member, failure)
                self._tried.add(member.url)
            attempts -= 1
            if not (moved or failure.retry_safe or isinstance(failure, TimedOut)):
                raise failure
            self._services.metrics.retries.labels("derender").inc()
            if attempts < 1 or moved:
                self._sessions = None
            failure = None
        return await self._by_calls(output)

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
        frame: dict[str, Any] = {
            "stream": self._number,
            "chunk": self._session_chunk(output, self._position),
        }
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
        member = self._services.render_pool.choose(
            self._tried, suits=self._exchange.may_derender, finishing=True
        )
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
        start: dict[str, Any] = {
            "endpoint": context.endpoint,
            "request_id": self._exchange.answer.response_id,
            "model": context.model,
            "created": self._exchange.answer.created,
            "request": context.request,
            "prompt_token_ids": context.prompt_token_ids,
            "prompt_tokens": context.prompt_tokens,
        }
        if self._span.carrier:
            start["trace"] = self._span.carrier
        if self._saved.state is not None:
            start["stream_state"] = self._saved.state
        frame: dict[str, Any] = {"stream": self._number, "open": start}
        if self._since_tokens or self._since.finish_reason is not None:
            frame["chunk"] = self._session_chunk(self._since, self._position - self._since_tokens)
        return frame

    def _took(self, output: Output, answer: Answer) -> Derendered:
        # An answer that cannot be read leaves the stream where it is: the output is read again.
        read = derendered(answer.chunk, answer.events, answer.derender, self._context.endpoint)
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
        return read

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
            "request_id": exchange.answer.response_id,
            "created": exchange.answer.created,
            "output_mode": "tokens",
            **self._chunk(output, position),
        }
        budget = exchange.budget(services.settings.timeouts.derender)

        async def call(url: str) -> Derendered:
            return await services.derender_client.chunk(
                url, self._context, self._saved, chunk, exchange.call_headers(self._span, budget), budget
            )

        attempts = services.settings.policy.derender_attempts
        return await on_render_members(services, "derender", attempts, call, self._exchange.may_derender)

    def _session_chunk(self, output: Output, position: int) -> SessionChunk:
        logprobs = None if output.logprobs is None else Logprobs(output.logprobs)
        choice = SessionChoice(
            self._index, output.token_ids, output.finish_reason, output.stop_reason, logprobs
        )
        chunk = SessionChunk([choice], position)
        if not self._begun and self._exchange.answer.return_token_ids:
            chunk.prompt_token_ids = self._context.prompt_token_ids
        return chunk

    def _chunk(self, output: Output, position: int) -> dict[str, Any]:
        chunk: dict[str, Any] = {"choices": [engine_choice(self._index, output)], "position": position}
        if not self._begun and self._exchange.answer.return_token_ids:
            chunk["prompt_token_ids"] = self._context.prompt_token_ids
        return chunk
