"""The streaming parser: token IDs in, events out, one output at a time.

Theory of operation. Tokens become text (`detokenizer`) and pass the stop strings (`stops`, scope "all").
The text then meets the grammar: the current node is either text with markers or a body. Text up to a marker
is of the node's region; a marker moves to the next node; the end of the text is held back while it may be
the beginning of a marker. A marker is found by its token ID, or by its characters in whatever tokens they
come; a token that is a marker never joins with the text around it. A body gets all text until it is done or
fails; a body that fails gives its text back, which is then text of the node it fails into and is not
searched again (so every character is looked at a bounded number of times).

Nothing depends on how tokens are split over calls of `feed`: work is done token by token and no rule looks
at the end of a call. All state is in the attributes listed in `_Snapshot`, and all of it is bounded: a
marker, a stop string, three bytes, ``blank_limit`` characters of white space, and ``hold_limit`` of a call
not yet committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

import msgspec

from render_tier.core.attribution import Ledger
from render_tier.core.blanks import BlankHold
from render_tier.core.body import Body, RoutedBody, Status
from render_tier.core.detokenizer import MAX_PENDING, Detokenizer
from render_tier.core.events import CallArguments, CallEnd, CallStart, Event, Stopped, Text
from render_tier.core.grammar import Grammar, Node
from render_tier.core.stops import StopMatcher, StopTable
from render_tier.core.table import Region
from render_tier.core.tool_schema import NO_TOOLS, ToolSchemas

SNAPSHOT_VERSION: Final = 1

BLOCK: Final = 32
"""Tokens that are read at once where they are nothing but text. No result depends on it."""

StopScope = Literal["all", "content"]


class SnapshotError(ValueError):
    """Bytes that are not a snapshot of a machine with this grammar and these options."""


@dataclass(frozen=True)
class MachineOptions:
    """What a request says about the reading of its output.

    ``stop_scope``: "all" matches stop strings in the whole output, markers included, as the coupled server
    does; "content" only in the content. ``min_tokens``: stop strings completed by an earlier token do not
    count. ``skip_special_tokens``: leave out special tokens that are no markers. ``hold_limit``: characters
    of an object that may be a call held back before it is taken for text. ``blank_limit``: see `blanks`.
    ``tools``: the request's tools, by which some families type the arguments of calls.
    ``repeat_reasoning``: an answer of nothing but reasoning repeats it as content at its end, up to
    ``hold_limit`` characters of it.
    """

    stops: StopTable | None = None
    stop_scope: StopScope = "all"
    include_stop: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    hold_limit: int = 65536
    blank_limit: int = 256
    tools: ToolSchemas = NO_TOOLS
    repeat_reasoning: bool = False


_TEXT: Final = -1  # stands for the ID of text that is no marker token


class Machine:
    """One output being read. ``tokens``: output tokens read so far. ``stopped``: the stop string that was
    matched; after it, further tokens are not read."""

    def __init__(self, grammar: Grammar, options: MachineOptions, prompt: bool | None = None) -> None:
        self._grammar = grammar
        self._options = options
        self._pieces = grammar.vocabulary.pieces
        self._plain_pieces = grammar.plain.__getitem__
        self._node: Node = grammar.start(prompt)
        self._body: Body | None = None
        self._marker_open = 0  # length of the marker before a body that is not committed
        self._body_open = 0  # characters of that body
        self._detokenizer = Detokenizer(replace_each_byte=grammar.vocabulary.byte_fallback)
        self._ledger = Ledger()
        self._held = ""  # may be the beginning of a marker
        self._matcher = StopMatcher(options.stops) if options.stops is not None else None
        self._queue: deque[tuple[int, str]] = deque()  # scope "all": pieces that may be part of a stop string
        self._queued = 0
        self._unsaid = ""  # scope "content": content that may be part of a stop string
        self._blanks = BlankHold(grammar.blanks, options.blank_limit)
        self._thoughts = BlankHold("trim" if grammar.trims else "keep", options.blank_limit)
        self._spoken = 0  # regions, as bits, in which a state with a separator has shown text
        self._separate = False  # the next text of this state comes after its separator
        self._kept: list[str] | None = [] if options.repeat_reasoning else None  # reasoning to be repeated
        self._kept_size = 0
        self._calls = 0
        self.tools = options.tools
        self.tokens = 0
        self.stopped: str | None = None
        self._events: list[Event] = []
        self._run: list[str] = []  # text of one kind, not yet an event
        self._run_region = Region.MARKUP
        if self._node.body is not None:
            self._body = self._node.body.open("", options.hold_limit)
        self._preface = grammar.preface

    # --- the interface ---

    def feed(self, token_ids: Iterable[int]) -> list[Event]:
        """Read output tokens, IDs of the vocabulary (others spell nothing). After a stop string, none is
        read: ``tokens`` says how many were."""
        ids = token_ids if isinstance(token_ids, list) else list(token_ids)
        for start in range(0, len(ids), BLOCK):
            block = ids[start : start + BLOCK] if len(ids) > BLOCK else ids
            if self._plain(block):
                continue
            for token_id in block:
                if self.stopped is not None:
                    break
                self.tokens += 1
                self._token(token_id)
        return self._take()

    def feed_text(self, text: str) -> list[Event]:
        """Read output that comes as text; it belongs to no token."""
        if text and self.stopped is None:
            self._pass(_TEXT, text)
        return self._take()

    def skip(self, count: int) -> list[Event]:
        """Count tokens that have no text: the stop token, and what an engine sent after it."""
        if self.stopped is None:
            self.tokens += count
            for _ in range(count):
                self._ledger.add()
        return self._take()

    @property
    def open_tokens(self) -> int:
        """Tokens read but not yet attributed."""
        return len(self._ledger.starts)

    def let_go_of_blanks(self) -> None:
        """The client has the white space that is held back (another server sent it): it is not sent again."""
        if self._blanks.release():
            self._blanks.visible = True

    def finish(self) -> list[Event]:
        """The output ends here. Everything held back is decided; the machine takes no more."""
        if self.stopped is None:
            self._pass(_TEXT, self._detokenizer.finish())
        while self._queue and self.stopped is None:
            self._scan(*self._queue.popleft())
        if self._held and not self._content_stopped():
            self._text(self._node, self._held)
        self._held = ""
        if self._body is not None and not self._content_stopped():
            self._body.finish(self)
            self._body_over(self._node.failed)
            if self._body is not None:  # where a finished body leads to another one: it has read nothing
                self._body = None
        if not self._content_stopped():
            self._say(self._unsaid)
        self._unsaid = ""
        if self._kept and self.stopped is None:
            self._say("".join(self._kept))
        self._append(Region.CONTENT, self._blanks.end())
        self._ledger.finish()
        return self._take()

    def snapshot(self) -> bytes:
        """The whole state between two calls of `feed`; `restore` with the same grammar and options goes
        on."""
        undecided, gaps = self._ledger.dump()
        return bytes([SNAPSHOT_VERSION]) + _ENCODER.encode(
            _Snapshot(
                node=self._node.index,
                tokens=self.tokens,
                calls=self._calls,
                pending=self._detokenizer.pending,
                held=self._held,
                undecided=undecided,
                gaps=gaps,
                progress=self._matcher.progress if self._matcher is not None else [],
                queue=list(self._queue),
                unsaid=self._unsaid,
                blank=self._blanks.held,
                blank_flags=self._blanks.flags,
                thought=self._thoughts.held,
                thought_flags=self._thoughts.flags,
                preface=self._preface,
                kept="".join(self._kept) if self._kept is not None else None,
                spoken=self._spoken,
                separate=self._separate,
                stopped=self.stopped,
                body=self._body.dump() if self._body is not None else None,
                marker_open=self._marker_open,
                body_open=self._body_open,
            )
        )

    @classmethod
    def restore(cls, grammar: Grammar, options: MachineOptions, data: bytes) -> Machine:
        """The machine that gave this snapshot. Raises SnapshotError for anything else."""
        if data[:1] != bytes([SNAPSHOT_VERSION]):
            raise SnapshotError("unknown snapshot version")
        try:
            saved = _DECODER.decode(memoryview(data)[1:])
            return cls(grammar, options)._adopt(saved)
        except (msgspec.MsgspecError, ValueError, UnicodeError, RecursionError, OverflowError) as error:
            raise SnapshotError(f"damaged snapshot: {error}") from None

    def _adopt(self, saved: _Snapshot) -> Machine:
        nodes = self._grammar.nodes
        if not 0 <= saved.node < len(nodes):
            raise ValueError("unknown state")
        self._node = node = nodes[saved.node]
        if (saved.body is not None) != (node.body is not None):
            raise ValueError("a body and its state disagree")
        if (
            saved.tokens < 0
            or saved.calls < 0
            or len(saved.pending) > MAX_PENDING
            or len(saved.held) > node.width
            or max(len(saved.blank), len(saved.thought)) > self._options.blank_limit
            or len(saved.kept or "") > self._options.hold_limit
            or saved.preface not in ("", self._grammar.preface)
        ):
            raise ValueError("counts or holds out of bounds")
        self.tokens, self._calls = saved.tokens, saved.calls
        self._detokenizer.pending = saved.pending
        self._held = saved.held
        self._ledger = Ledger.load(saved.undecided, saved.gaps)
        stops = self._options.stops
        if stops is not None:
            self._matcher = StopMatcher(stops, saved.progress)
        if stops is None and (saved.progress or saved.queue or saved.unsaid or saved.stopped is not None):
            raise ValueError("stop strings without stop strings")
        self._queue = deque(saved.queue)
        self._queued = sum(len(text) for _, text in saved.queue)
        self._unsaid = saved.unsaid
        self._blanks.held, self._blanks.flags = saved.blank, saved.blank_flags
        self._thoughts.held, self._thoughts.flags = saved.thought, saved.thought_flags
        self._preface = saved.preface
        self._kept = [saved.kept] if saved.kept is not None else None
        self._kept_size = len(saved.kept or "")
        self._spoken, self._separate = saved.spoken, saved.separate
        self.stopped = saved.stopped
        self._body = None
        if node.body is not None:
            self._body = node.body.load(saved.body, self._options.hold_limit)
        self._marker_open, self._body_open = saved.marker_open, saved.body_open
        return self

    # --- tokens to text ---

    def _plain(self, token_ids: list[int]) -> bool:
        """The short way for tokens that are nothing but more text of where the machine is. False: nothing was
        read."""
        ledger, node = self._ledger, self._node
        if self._held or ledger.starts or self._detokenizer.pending or self.stopped is not None:
            return False
        try:
            text = "".join(map(self._plain_pieces, token_ids))  # type: ignore[arg-type]  # None: TypeError
        except TypeError:
            return False
        matcher = self._matcher
        if matcher is not None and (self._queue or self._unsaid or not matcher.passes(text)):
            return False
        body = self._body
        if body is None:
            if node.first is not None and node.first(text) is not None:
                return False
            region = node.text
            self._show(node, text)
        elif body.committed and body.plain(text, self):
            region = Region.CALL
        else:
            return False
        self.tokens += len(token_ids)
        ledger.settle(region, len(token_ids))
        return True

    def _token(self, token_id: int) -> None:
        ledger = self._ledger
        marker = self._grammar.marker_ids.get(token_id)
        if marker is not None:
            if self._detokenizer.pending:
                self._pass(_TEXT, self._detokenizer.finish())
            ledger.add()
            if self.stopped is None:
                self._pass(token_id, marker)
            return
        if token_id in self._grammar.skipped and self._options.skip_special_tokens:
            if ledger.starts:
                ledger.add()
            else:
                ledger.settle(Region.MARKUP)
            return
        ledger.add()
        text = self._detokenizer.feed(self._pieces[token_id])
        if text:
            self._pass(_TEXT, text)

    def _pass(self, token_id: int, text: str) -> None:
        """Through the stop strings of scope "all", if any."""
        self._ledger.write(len(text))
        matcher = self._matcher
        if matcher is None or self._options.stop_scope != "all":
            if text:
                self._scan(token_id, text)
            return
        before = self._queued
        self._queue.append((token_id, text))
        self._queued += len(text)
        match = matcher.feed(text, armed=self.tokens > self._options.min_tokens)
        if match is None:
            self._unqueue(self._queued - matcher.held)
            return
        end, stop = match
        cut = before + end - (0 if self._options.include_stop else len(stop))
        self._unqueue(cut, split=True)
        self._queue.clear()
        self._queued = 0
        self.stopped = stop
        self._events_stopped(stop)

    def _unqueue(self, length: int, *, split: bool = False) -> None:
        """Let the first ``length`` queued characters go on. A marker token goes whole or not at all, unless
        a stop string cuts it (``split``): what is left of it is ordinary text."""
        queue = self._queue
        while queue and length > 0:
            token_id, text = queue[0]
            if len(text) <= length:
                queue.popleft()
                self._queued -= len(text)
                length -= len(text)
                self._scan(token_id, text)
                continue
            if token_id == _TEXT or split:
                queue[0] = (_TEXT, text[length:])
                self._queued -= length
                self._scan(_TEXT, text[:length])
            return

    # --- text to regions and calls ---

    def _scan(self, token_id: int, text: str) -> None:
        while text and not self._content_stopped():
            node = self._node
            if node.body is not None:
                target = node.ids.get(token_id)
                if target is not None:
                    failed = self._close_body()
                    self._enter(self._node.ids.get(token_id, target) if failed else target, text)
                    return
                text, token_id = self._feed_body(text, token_id)
                continue
            if token_id != _TEXT:
                target = node.ids.get(token_id)
                skipped = (
                    target is None
                    and self._options.skip_special_tokens
                    and token_id not in node.kept
                    and token_id in self._grammar.vocabulary.special_ids
                )
                if target is not None or skipped:
                    if self._held:
                        held, self._held = self._held, ""
                        self._text(node, held)
                    if target is not None:
                        self._enter(target, text)
                    else:
                        self._ledger.advance(len(text), Region.MARKUP)
                    return
            if self._held:
                text, self._held = self._held + text, ""
            found = node.search(text) if node.search is not None else None
            if found is None:
                keep = node.held(text)
                if keep:
                    self._held = text[-keep:]
                    text = text[:-keep]
                if text:
                    self._text(node, text)
                return
            start, end = found.span()
            if start:
                self._text(node, text[:start])
            self._enter(node.on[found[0]], found[0])
            text, token_id = text[end:], _TEXT

    def _enter(self, node: Node, marker: str) -> None:
        self._node = node
        if self._thoughts.held and node.done.text is not Region.REASONING:
            self._thoughts.held = ""
        if node.separator:
            self._separate = bool(self._spoken & 1 << node.text)
        if node.drops_blanks:
            self._blanks.held = ""
        if node.opens_call:
            self._blanks.opened = True
        if node.body is None:
            if node.shows_marker:
                self._text(node, marker)
            else:
                self._ledger.advance(len(marker), Region.MARKUP)
        elif node.gives_back:
            self._body = node.body.open(marker, self._options.hold_limit)
            self._marker_open = len(marker)
        else:
            self._ledger.advance(len(marker), Region.MARKUP)
            self._body = node.body.open("", self._options.hold_limit)

    def _feed_body(self, text: str, token_id: int) -> tuple[str, int]:
        """Returns what the body left: the whole piece when it took nothing, or ordinary text."""
        body = self._body
        assert body is not None
        end = body.feed(text, 0, self)
        self._body_read(end)
        if body.status is not Status.RUNNING:
            self._body_over(self._node.failed)
        return (text, token_id) if end == 0 else (text[end:], _TEXT)

    def _body_read(self, length: int) -> None:
        assert self._body is not None
        if self._body.committed:
            self._ledger.advance(self._marker_open, Region.MARKUP)
            self._ledger.advance(self._body_open + length, Region.CALL)
            self._marker_open = self._body_open = 0
        else:
            self._body_open += length

    def _close_body(self) -> bool:
        """True: the body's text was given back, so what closed it has the meaning that it has in text."""
        body = self._body
        assert body is not None
        body.close(self)
        if body.status is Status.FAILED and len(body.raw.strip()) <= self._marker_open:
            # One marker straight after another: the first opened nothing, and is no text either.
            self._ledger.advance(self._marker_open + self._body_open, Region.MARKUP)
            self._marker_open = self._body_open = 0
            self._body = None
            return False
        self._body_over(self._node.failed)
        return body.status is Status.FAILED

    def _body_over(self, failed: Node) -> None:
        body, node = self._body, self._node
        assert body is not None
        self._body = None
        marker_open, body_open = self._marker_open, self._body_open
        self._marker_open = self._body_open = 0
        if body.status is Status.DONE:
            self._ledger.advance(marker_open, Region.MARKUP)
            self._ledger.advance(body_open, Region.CALL if body.committed else Region.MARKUP)
            self._enter(node.routes[cast(RoutedBody, body).route] if node.routes else node.done, "")
            return
        self._node = failed
        raw = body.raw
        self._ledger.advance(marker_open + body_open - len(raw), Region.MARKUP)  # a marker not given back
        self._text(failed, raw)

    # --- `body.Calls` ---

    def call_start(self, name: str, written_id: str = "") -> None:
        self._say(self._unsaid)
        self._unsaid = ""
        if self._matcher is not None and self._options.stop_scope == "content":
            self._matcher.progress = [0] * len(self._matcher.progress)
        self._kept = None
        self._blanks.before_call()
        self._flush()
        self._events.append(CallStart(self._calls, name, written_id))
        self._calls += 1

    def call_arguments(self, text: str) -> None:
        self._append(Region.CALL, text)

    def call_end(self, complete: bool) -> None:
        self._flush()
        self._events.append(CallEnd(self._calls - 1, complete))

    # --- out ---

    def _text(self, node: Node, text: str) -> None:
        self._ledger.advance(len(text), node.text)
        if text:
            self._show(node, text)

    def _show(self, node: Node, text: str) -> None:
        if node.separator:
            self._spoken |= 1 << node.text
            if self._separate:
                self._separate = False
                text = node.separator + text
        if node.text is Region.CONTENT:
            self._content(text)
        elif node.text is Region.REASONING:
            self._reason(self._thoughts.feed(text))

    def _content(self, text: str) -> None:
        """Through the stop strings of scope "content", if any."""
        matcher = self._matcher
        if matcher is None or self._options.stop_scope != "content":
            if text:
                self._say(text)
            return
        before = len(self._unsaid)
        match = matcher.feed(text, armed=self.tokens > self._options.min_tokens)
        text = self._unsaid + text
        if match is None:
            keep = matcher.held
            self._unsaid = text[len(text) - keep :]
            self._say(text[: len(text) - keep])
            return
        end, stop = match
        self._unsaid = ""
        self._say(text[: before + end - (0 if self._options.include_stop else len(stop))])
        self.stopped = stop
        self._events_stopped(stop)

    def _content_stopped(self) -> bool:
        """A stop string in the content ends the reading at once; one in the whole output cut the text
        before."""
        return self.stopped is not None and self._options.stop_scope == "content"

    def _reason(self, text: str) -> None:
        self._append(Region.REASONING, text)
        if self._kept is not None:
            self._kept.append(text)
            self._kept_size += len(text)
            if self._kept_size > self._options.hold_limit:
                self._kept = None

    def _say(self, text: str) -> None:
        self._append(Region.CONTENT, self._blanks.feed(text) if text else "")
        if self._kept is not None and text.strip():
            self._kept = None  # there is an answer: its reasoning is not repeated

    def _events_stopped(self, stop: str) -> None:
        self._flush()
        self._events.append(Stopped(stop))

    def _append(self, region: Region, text: str) -> None:
        if not text:
            return
        if region is not self._run_region:
            self._flush()
            self._run_region = region
        self._run.append(text)

    def _flush(self) -> None:
        if not self._run:
            return
        text = "".join(self._run)
        self._run = []
        if self._run_region is Region.CALL:
            self._events.append(CallArguments(self._calls - 1, text))
        else:
            self._events.append(Text(self._run_region, text))

    def _take(self) -> list[Event]:
        self._flush()
        if self._preface:
            self._events.insert(0, Text(Region.CONTENT, self._preface))
            self._preface = ""
        events = self._events
        self._events = []
        events.extend(self._ledger.take())
        return events


class _Snapshot(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    node: int
    tokens: int
    calls: int
    pending: bytes
    held: str
    undecided: int
    gaps: list[int]
    progress: list[int]
    queue: list[tuple[int, str]]
    unsaid: str
    blank: str
    blank_flags: int
    thought: str
    thought_flags: int
    preface: str
    kept: str | None
    spoken: int
    separate: bool
    stopped: str | None
    body: Any
    marker_open: int
    body_open: int


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Snapshot)
