"""What of the output is shown, as events: the last part of the machine.

Text comes in by region and leaves as `Text` after the stop strings of scope "content" and the rules about
white space; calls come from bodies (`body.Calls`). Pieces of one kind that follow each other are one event.

What is held back here: content that may be part of a stop string, and white space up to ``blank_limit``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from render_tier.core.attribution import Ledger
from render_tier.core.blanks import BlankHold
from render_tier.core.events import CallArguments, CallEnd, CallStart, Event, Stopped, Text
from render_tier.core.grammar import Grammar, Node
from render_tier.core.options import MachineOptions
from render_tier.core.stops import StopMatcher
from render_tier.core.table import Region


class OutletState(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """An `Outlet` between two calls."""

    calls: int
    stopped: str | None
    progress: list[int]
    unsaid: str
    blank: str
    blank_flags: int
    thought: str
    thought_flags: int
    preface: bool
    kept: str | None
    spoken: int
    separate: bool


class Outlet:
    """``preface``: content still to be shown before all else. ``calls``: how many have begun. ``stopped``:
    the stop string that was matched, here or before; ``closed`` when it was here: then nothing more is shown.
    """

    def __init__(self, grammar: Grammar, options: MachineOptions, ledger: Ledger) -> None:
        self.tools = options.tools
        self.calls = 0
        self.stopped: str | None = None
        self.closed = False
        self._options = options
        self._ledger = ledger
        scoped = options.stop_scope == "content" and options.stops is not None
        self._matcher = StopMatcher(options.stops) if scoped and options.stops is not None else None
        self.may_stop: Final = options.stops.first.search if self._matcher and options.stops else None
        """Finds in content a character with which a stop string of this scope begins."""
        self._unsaid = ""  # content that may be part of a stop string
        self._blanks = BlankHold(grammar.blanks, options.blank_limit)
        self._thoughts = BlankHold("trim" if grammar.trims else "keep", options.blank_limit)
        self._spoken = 0  # regions, as bits, in which a state with a separator has shown text
        self._separate = False  # the next text of this state comes after its separator
        self._kept: list[str] | None = [] if options.repeat_reasoning else None  # reasoning to be repeated
        self._kept_size = 0
        self.preface = grammar.preface
        self._events: list[Event] = []
        self._run: list[str] = []  # text of one kind, not yet an event
        self._region = Region.MARKUP  # of that text

    # --- from the walk through the grammar ---

    def enter(self, node: Node) -> None:
        """The text that follows is this state's."""
        if self._thoughts.held and node.done.text is not Region.REASONING:
            self._thoughts.held = ""
        if node.separator:
            self._separate = bool(self._spoken & 1 << node.text)
        if node.drops_blanks:
            self._blanks.held = ""
        if node.opens_call:
            self._blanks.opened = True

    def text(self, node: Node, text: str) -> None:
        """More text of this state; not empty."""
        if node.separator:
            self._spoken |= 1 << node.text
            if self._separate:
                self._separate = False
                text = node.separator + text
        if node.text is Region.CONTENT:
            self._content(text)
        elif node.text is Region.REASONING:
            self.add(Region.REASONING, self._thought(text))

    def reader(self, node: Node) -> Callable[[str], str] | None:
        """The short way of `text` for this state, for text in which nothing may stop: what gives the text
        that is to be shown now (`add`). None while there is none."""
        if node.separator and (self._separate or not self._spoken & 1 << node.text):
            return None
        if node.text is Region.REASONING:
            return self._thoughts.feed if self._kept is None else self._thought
        if node.text is not Region.CONTENT:
            return _unshown
        if self._kept is not None or (self._matcher is not None and (self._unsaid or self._matcher.held)):
            return None
        return self._blanks.feed

    def stop(self, stop: str) -> None:
        """A stop string was matched."""
        self.stopped = stop
        self._flush()
        self._events.append(Stopped(stop))

    # --- `body.Calls` ---

    def call_start(self, name: str, written_id: str = "") -> None:
        self._say(self._unsaid)
        self._unsaid = ""
        if self._matcher is not None:
            self._matcher.progress = [0] * len(self._matcher.progress)
        self._kept = None
        self._blanks.before_call()
        self._flush()
        self._events.append(CallStart(self.calls, name, written_id))
        self.calls += 1

    def call_arguments(self, text: str) -> None:
        self.add(Region.CALL, text)

    def call_end(self, complete: bool) -> None:
        self._flush()
        self._events.append(CallEnd(self.calls - 1, complete))

    # --- out ---

    def add(self, region: Region, text: str) -> None:
        """Show text as it is."""
        if not text:
            return
        if region is not self._region:
            self._flush()
            self._region = region
        self._run.append(text)

    def take(self) -> list[Event]:
        """The events since the last call."""
        self._flush()
        if self.preface:
            self._events.insert(0, Text(Region.CONTENT, self.preface))
            self.preface = ""
        events, self._events = self._events, []
        return events

    def release_blanks(self) -> None:
        """The client has the white space that is held back: it is not sent again."""
        if self._blanks.release():
            self._blanks.visible = True

    def finish(self) -> None:
        """The output ends here: what is held back is decided."""
        if not self.closed:
            self._say(self._unsaid)
        self._unsaid = ""
        if self._kept and self.stopped is None:
            self._say("".join(self._kept))
        self.add(Region.CONTENT, self._blanks.end())

    def _content(self, text: str) -> None:
        """Through the stop strings of scope "content", if any."""
        matcher = self._matcher
        if matcher is None:
            self._say(text)
            return
        before = len(self._unsaid)
        match = matcher.feed(text, armed=self._ledger.tokens > self._options.min_tokens)
        text = self._unsaid + text
        if match is None:
            keep = matcher.held
            self._unsaid = text[len(text) - keep :]
            self._say(text[: len(text) - keep])
            return
        end, stop = match
        self._unsaid = ""
        self._say(text[: before + end - (0 if self._options.include_stop else len(stop))])
        self.closed = True
        self.stop(stop)

    def _thought(self, text: str) -> str:
        text = self._thoughts.feed(text)
        if self._kept is not None:
            self._kept.append(text)
            self._kept_size += len(text)
            if self._kept_size > self._options.hold_limit:
                self._kept = None
        return text

    def _say(self, text: str) -> None:
        self.add(Region.CONTENT, self._blanks.feed(text) if text else "")
        if self._kept is not None and text.strip():
            self._kept = None  # there is an answer: its reasoning is not repeated

    def _flush(self) -> None:
        if not self._run:
            return
        text = "".join(self._run)
        self._run = []
        if self._region is Region.CALL:
            self._events.append(CallArguments(self.calls - 1, text))
        else:
            self._events.append(Text(self._region, text))

    # --- state ---

    def dump(self) -> OutletState:
        kept = self._kept
        return OutletState(
            calls=self.calls,
            stopped=self.stopped,
            progress=self._matcher.progress if self._matcher is not None else [],
            unsaid=self._unsaid,
            blank=self._blanks.held,
            blank_flags=self._blanks.flags,
            thought=self._thoughts.held,
            thought_flags=self._thoughts.flags,
            preface=bool(self.preface),
            kept="".join(kept) if kept is not None else None,
            spoken=self._spoken,
            separate=self._separate,
        )

    def restore(self, saved: OutletState) -> None:
        """Take over what `dump` gave. Raises ValueError for what it cannot have given."""
        options = self._options
        if (
            saved.calls < 0
            or max(len(saved.blank), len(saved.thought)) > options.blank_limit
            or len(saved.kept or "") > options.hold_limit
        ):
            raise ValueError("counts or holds out of bounds")
        if options.stops is not None:
            if self._matcher is not None:
                self._matcher = StopMatcher(options.stops, saved.progress)
        elif saved.progress or saved.unsaid or saved.stopped is not None:
            raise ValueError("stop strings without stop strings")
        self.calls, self.stopped = saved.calls, saved.stopped
        self.closed = saved.stopped is not None and self._matcher is not None
        self._unsaid = saved.unsaid
        self._blanks.held, self._blanks.flags = saved.blank, saved.blank_flags
        self._thoughts.held, self._thoughts.flags = saved.thought, saved.thought_flags
        if not saved.preface:
            self.preface = ""
        self._kept = [saved.kept] if saved.kept is not None else None
        self._kept_size = len(saved.kept or "")
        self._spoken, self._separate = saved.spoken, saved.separate


def _unshown(text: str) -> str:
    """The reader of markup."""
    return ""
