"""The walk through the grammar: text and marker tokens in, text by region and calls out.

The current node is either text with markers or a body. Text up to a marker is of the node's region; a marker
moves to the next node; the end of the text is held back while it may be the beginning of a marker. A marker
is found by its token ID, or by its characters in whatever tokens they come; a token that is a marker never
joins with the text around it. A body gets all text until it is done or fails; a body that fails gives its
text back, which is then text of the node it fails into and is not searched again, so every character is
looked at a bounded number of times.
"""

from __future__ import annotations

from typing import Any, Final, cast

import msgspec

from render_tier.core.attribution import Ledger
from render_tier.core.body import Body, RoutedBody, Status
from render_tier.core.grammar import Grammar, Node
from render_tier.core.options import MachineOptions
from render_tier.core.outlet import Outlet
from render_tier.core.table import Region

TEXT: Final = -1
"""Stands for the ID of text that is no marker token."""


class WalkState(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """A `Walk` between two calls."""

    node: int
    held: str
    body: Any
    marker_open: int
    body_open: int


class Walk:
    """``node``: where in the grammar the text is; ``body``: its parser there, if it has one. ``held``: text
    that may be the beginning of a marker."""

    def __init__(
        self, grammar: Grammar, options: MachineOptions, start: Node, outlet: Outlet, ledger: Ledger
    ) -> None:
        self.node = start
        self.body: Body | None = None
        self.held = ""
        self._grammar = grammar
        self._options = options
        self._outlet = outlet
        self._ledger = ledger
        self._marker_open = 0  # length of the marker before a body that is not committed
        self._body_open = 0  # characters of that body
        if start.body is not None:
            self.body = start.body.open("", options.hold_limit)

    def read(self, token_id: int, text: str) -> None:
        """More of the output: the token that is this marker, or (`TEXT`) ordinary text."""
        while text and not self._outlet.closed:
            node = self.node
            if node.body is not None:
                target = node.ids.get(token_id)
                if target is not None:
                    failed = self._close_body()
                    self._enter(self.node.ids.get(token_id, target) if failed else target, text)
                    return
                text, token_id = self._feed_body(text, token_id)
                continue
            if token_id != TEXT:
                target = node.ids.get(token_id)
                skipped = (
                    target is None
                    and self._options.skip_special_tokens
                    and token_id not in node.kept
                    and token_id in self._grammar.vocabulary.special_ids
                )
                if target is not None or skipped:
                    if self.held:
                        held, self.held = self.held, ""
                        self._text(node, held)
                    if target is not None:
                        self._enter(target, text)
                    else:
                        self._ledger.advance(len(text), Region.MARKUP)
                    return
            if self.held:
                text, self.held = self.held + text, ""
            found = node.search(text) if node.search is not None else None
            if found is None:
                keep = node.held(text)
                if keep:
                    self.held = text[-keep:]
                    text = text[:-keep]
                if text:
                    self._text(node, text)
                return
            start, end = found.span()
            if start:
                self._text(node, text[:start])
            self._enter(node.on[found[0]], found[0])
            text, token_id = text[end:], TEXT

    def finish(self) -> None:
        """The output ends here."""
        if self.held and not self._outlet.closed:
            self._text(self.node, self.held)
        self.held = ""
        if self.body is not None and not self._outlet.closed:
            self.body.finish(self._outlet)
            self._body_over()
            self.body = None  # where a finished body leads to another one: it has read nothing

    def _text(self, node: Node, text: str) -> None:
        self._ledger.advance(len(text), node.text)
        if text:
            self._outlet.text(node, text)

    def _enter(self, node: Node, marker: str) -> None:
        self.node = node
        self._outlet.enter(node)
        if node.body is None:
            if node.shows_marker:
                self._text(node, marker)
            else:
                self._ledger.advance(len(marker), Region.MARKUP)
        elif node.gives_back:
            self.body = node.body.open(marker, self._options.hold_limit)
            self._marker_open = len(marker)
        else:
            self._ledger.advance(len(marker), Region.MARKUP)
            self.body = node.body.open("", self._options.hold_limit)

    # --- bodies ---

    def _feed_body(self, text: str, token_id: int) -> tuple[str, int]:
        """Returns what the body left: the whole piece when it took nothing, or ordinary text."""
        body = self.body
        assert body is not None
        end = body.feed(text, 0, self._outlet)
        if body.committed:
            self._ledger.advance(self._marker_open, Region.MARKUP)
            self._ledger.advance(self._body_open + end, Region.CALL)
            self._marker_open = self._body_open = 0
        else:
            self._body_open += end
        if body.status is not Status.RUNNING:
            self._body_over()
        return (text, token_id) if end == 0 else (text[end:], TEXT)

    def _close_body(self) -> bool:
        """True: the body's text was given back, so what closed it has the meaning that it has in text."""
        body = self.body
        assert body is not None
        body.close(self._outlet)
        if body.status is Status.FAILED and len(body.raw.strip()) <= self._marker_open:
            # One marker straight after another: the first opened nothing, and is no text either.
            self._ledger.advance(self._marker_open + self._body_open, Region.MARKUP)
            self._marker_open = self._body_open = 0
            self.body = None
            return False
        self._body_over()
        return body.status is Status.FAILED

    def _body_over(self) -> None:
        body, node = self.body, self.node
        assert body is not None
        self.body = None
        marker_open, body_open = self._marker_open, self._body_open
        self._marker_open = self._body_open = 0
        if body.status is Status.DONE:
            self._ledger.advance(marker_open, Region.MARKUP)
            self._ledger.advance(body_open, Region.CALL if body.committed else Region.MARKUP)
            self._enter(node.routes[cast(RoutedBody, body).route] if node.routes else node.done, "")
            return
        self.node = node.failed
        raw = body.raw
        self._ledger.advance(marker_open + body_open - len(raw), Region.MARKUP)  # a marker not given back
        self._text(node.failed, raw)

    # --- state ---

    def dump(self) -> WalkState:
        body = self.body.dump() if self.body is not None else None
        return WalkState(self.node.index, self.held, body, self._marker_open, self._body_open)

    def restore(self, saved: WalkState) -> None:
        """Take over what `dump` gave. Raises ValueError or msgspec.ValidationError for what it cannot have
        given."""
        nodes = self._grammar.nodes
        if not 0 <= saved.node < len(nodes):
            raise ValueError("unknown state")
        node = nodes[saved.node]
        if (saved.body is not None) != (node.body is not None):
            raise ValueError("a body and its state disagree")
        if len(saved.held) > node.width:
            raise ValueError("more is held than may be")
        self.node, self.held = node, saved.held
        self.body = node.body.load(saved.body, self._options.hold_limit) if node.body is not None else None
        self._marker_open, self._body_open = saved.marker_open, saved.body_open
