"""The streaming parser: token IDs in, events out, one output at a time.

Theory of operation. Tokens become text (`detokenizer`), which passes the stop strings of scope "all"
(`stop_gate`), meets the grammar (`walk`) and is shown (`outlet`). A ledger (`attribution`) follows which
token each character came from.

Nothing depends on how tokens are split over calls of `feed`: work is done token by token and no rule looks at
the end of a call. Most tokens are nothing but more text of where the machine is; while nothing is held back,
those take a short way that looks at no part's rules but one (`_plain`), with the same result.

All state is in the parts and goes into a snapshot, and all of it is bounded: a marker, a stop string, three
bytes, ``blank_limit`` characters of white space, and ``hold_limit`` of a call not yet committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from render_tier.core.attribution import Ledger
from render_tier.core.detokenizer import MAX_PENDING, Detokenizer
from render_tier.core.events import CallArguments, Event, Text, Tokens
from render_tier.core.grammar import Grammar
from render_tier.core.options import MachineOptions, StopScope
from render_tier.core.outlet import Outlet
from render_tier.core.snapshot import Snapshot, SnapshotError, decode
from render_tier.core.stop_gate import StopGate
from render_tier.core.table import Region
from render_tier.core.walk import TEXT, Walk

__all__ = ["Machine", "MachineOptions", "SnapshotError", "StopScope"]

BLOCK: Final = 32
"""Tokens that are read at once where they are nothing but text. No result depends on it."""


class Machine:
    """One output being read."""

    def __init__(self, grammar: Grammar, options: MachineOptions, prompt: bool | None = None) -> None:
        self._grammar = grammar
        self._skips = options.skip_special_tokens
        self._pieces = grammar.vocabulary.pieces
        self._detokenizer = Detokenizer(replace_each_byte=grammar.vocabulary.byte_fallback)
        self._ledger = Ledger()
        self._outlet = Outlet(grammar, options, self._ledger)
        self._walk = Walk(grammar, options, grammar.start(prompt), self._outlet, self._ledger)
        self._gate: StopGate | None = None
        self._pass = self._walk.read
        if options.stops is not None and options.stop_scope == "all":
            self._gate = StopGate(options.stops, options, self._walk, self._outlet, self._ledger)
            self._pass = self._gate.read
        # The short way, as `_settle` finds it: what reads text here (None: there is no short way), which
        # tokens are text here, of which region, and what finds the beginning of a stop string in it.
        self._read: Callable[[str], str | None] | None = None
        self._texts: Mapping[int, str | None] = {}
        self._region = Region.MARKUP
        self._may_stop: Callable[[str], object] | None = None

    @property
    def tokens(self) -> int:
        """Output tokens read so far."""
        return self._ledger.tokens

    @property
    def stopped(self) -> str | None:
        """The stop string that was matched; after it, further tokens are not read."""
        return self._outlet.stopped

    @property
    def open_tokens(self) -> int:
        """Tokens read but not yet attributed."""
        return len(self._ledger.starts)

    def feed(self, token_ids: Iterable[int]) -> list[Event]:
        """Read output tokens, IDs of the vocabulary (others spell nothing). After a stop string, none is
        read: ``tokens`` says how many were."""
        ids = token_ids if isinstance(token_ids, list) else list(token_ids)
        count = len(ids)
        shown = self._plain(ids) if 0 < count <= BLOCK else None
        if shown is None:
            self._read_each(ids)
            return self._take()
        region = self._region
        tokens = Tokens(region, count)
        self._ledger.tokens += count
        if not shown:
            return [tokens]
        if region is Region.CALL:
            return [CallArguments(self._outlet.calls - 1, shown), tokens]
        return [Text(region, shown), tokens]

    def feed_text(self, text: str) -> list[Event]:
        """Read output that comes as text; it belongs to no token."""
        if self.stopped is None:
            self._write(TEXT, text)
        self._settle()
        return self._take()

    def skip(self, count: int) -> list[Event]:
        """Count tokens that have no text: the stop token, and what an engine sent after it."""
        if self.stopped is None:
            self._ledger.tokens += count
            for _ in range(count):
                self._ledger.add()
        self._settle()
        return self._take()

    def let_go_of_blanks(self) -> None:
        """The client has the white space that is held back (another server sent it): it is not sent again."""
        self._outlet.release_blanks()

    def finish(self) -> list[Event]:
        """The output ends here. Everything held back is decided; the machine takes no more."""
        if self.stopped is None:
            self._write(TEXT, self._detokenizer.finish())
        if self._gate is not None:
            self._gate.finish()
        self._walk.finish()
        self._outlet.finish()
        self._ledger.finish()
        self._read = None
        return self._take()

    # --- state ---

    def snapshot(self) -> bytes:
        """The whole state between two calls of `feed`; `restore` with the same grammar and options goes
        on."""
        return Snapshot(
            self._ledger.tokens,
            self._detokenizer.pending,
            self._ledger.dump(),
            self._gate.dump() if self._gate is not None else None,
            self._walk.dump(),
            self._outlet.dump(),
        ).encode()

    @classmethod
    def restore(cls, grammar: Grammar, options: MachineOptions, data: bytes) -> Machine:
        """The machine that gave this snapshot. Raises SnapshotError for anything else."""
        saved = decode(data)
        self = cls(grammar, options)
        try:
            self._adopt(saved)
        except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
            raise SnapshotError(f"damaged snapshot: {error}") from None
        return self

    def _adopt(self, saved: Snapshot) -> None:
        if saved.tokens < 0 or len(saved.pending) > MAX_PENDING:
            raise ValueError("counts or holds out of bounds")
        if (saved.gate is None) != (self._gate is None):
            raise ValueError("stop strings without stop strings")
        self._detokenizer.pending = saved.pending
        self._ledger.restore(saved.tokens, *saved.ledger)
        if self._gate is not None and saved.gate is not None:
            self._gate.restore(saved.gate)
        self._walk.restore(saved.walk)
        self._outlet.restore(saved.outlet)
        self._settle()

    # --- tokens to text ---

    def _plain(self, ids: Sequence[int]) -> str | None:
        """The short way for tokens that are nothing but more text of where the machine is: the text to be
        shown now, of ``_region``. None: nothing was read."""
        read = self._read
        if read is None:
            return None
        if len(ids) == 1:
            text = self._texts[ids[0]]
            if text is None:
                return None
        else:
            try:
                text = "".join(map(self._texts.__getitem__, ids))  # type: ignore[arg-type]  # None: TypeError
            except TypeError:
                return None
        if self._may_stop is not None and self._may_stop(text) is not None:
            return None
        return read(text)

    def _read_each(self, ids: list[int]) -> None:
        """Read tokens block by block while that is possible, and one by one where it is not."""
        outlet, ledger = self._outlet, self._ledger
        for start in range(0, len(ids), BLOCK):
            block = ids[start : start + BLOCK]
            shown = self._plain(block) if len(ids) > BLOCK else None  # `feed` has tried a shorter one
            if shown is not None:
                outlet.add(self._region, shown)
                ledger.tokens += len(block)
                ledger.settle(self._region, len(block))
                continue
            for token_id in block:
                if outlet.stopped is not None:
                    return
                shown = self._plain((token_id,)) if len(block) > 1 else None
                ledger.tokens += 1
                if shown is None:
                    self._token(token_id)
                    self._settle()
                else:
                    outlet.add(self._region, shown)
                    ledger.settle(self._region)

    def _token(self, token_id: int) -> None:
        ledger = self._ledger
        marker = self._grammar.marker_ids.get(token_id)
        if marker is not None:
            if self._detokenizer.pending:
                self._write(TEXT, self._detokenizer.finish())
            ledger.add()
            if self.stopped is None:
                self._write(token_id, marker)
        elif token_id in self._grammar.skipped and self._skips:
            if ledger.starts:
                ledger.add()
            else:
                ledger.settle(Region.MARKUP)
        else:
            ledger.add()
            self._write(TEXT, self._detokenizer.feed(self._pieces[token_id]))

    def _write(self, token_id: int, text: str) -> None:
        """Text of the tokens added to the ledger so far."""
        if text:
            self._ledger.write(len(text))
            self._pass(token_id, text)

    def _settle(self) -> None:
        """Find the short way from here."""
        walk, outlet, gate = self._walk, self._outlet, self._gate
        self._read = None
        if (
            self._ledger.starts
            or walk.held
            or self._detokenizer.pending
            or outlet.preface
            or outlet.stopped is not None
            or (gate is not None and not gate.idle)
        ):
            return
        self._may_stop = gate.may_stop if gate is not None else None
        node, body = walk.node, walk.body
        self._texts = node.plain
        if body is not None:
            if body.committed:
                self._region, self._read = Region.CALL, body.plain
            return
        self._region, self._read = node.text, outlet.reader(node)
        if node.text is Region.CONTENT and outlet.may_stop is not None:
            self._may_stop = outlet.may_stop

    def _take(self) -> list[Event]:
        events = self._outlet.take()
        events += self._ledger.take()
        return events
