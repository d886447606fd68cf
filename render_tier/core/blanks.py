"""White space that may turn out to stand before a call or at the end of reasoning, where it is not shown.

Held back until the next visible character, a call or the end, so that whole and streamed answers agree. The
hold is bounded: a run longer than the limit counts as visible text and is let go, whatever the chunking.
"""

from __future__ import annotations

from typing import Final

from render_tier.core.table import Blanks

_VISIBLE: Final = 1
_CALLED: Final = 2
_OPENED: Final = 4
_OVER: Final = 8


class BlankHold:
    """``held``: white space not yet shown. ``visible``: the text has had something else than white space.
    ``opened``: the markup of a call was seen, whatever comes of it."""

    __slots__ = ("_called", "_limit", "_over", "_trims", "held", "opened", "visible")

    def __init__(self, mode: Blanks, limit: int) -> None:
        self._limit = limit
        self._trims = mode == "trim"
        self._called = False
        self._over = False  # a run of white space longer than the limit is being let through
        self.held = ""
        self.opened = False
        self.visible = mode == "keep"

    def feed(self, text: str) -> str:
        """The text that may be shown now; not empty."""
        if self.visible and not self.held and not (self._trims and text[-1].isspace()):
            self._over = False
            return text
        if self._trims:
            return self._trim(text)
        self.held += text  # bounded by the limit
        if self.held.isspace() and len(self.held) <= self._limit:
            return ""
        return self.release(visible=True)

    def _trim(self, text: str) -> str:
        kept = text.rstrip()
        if not kept and self._over:
            return text
        shown, run = (self.held + kept, text[len(kept) :]) if kept else ("", self.held + text)
        self._over = len(run) > self._limit
        if kept and self._called and not self.visible:
            shown = shown.lstrip()
        if self._over:
            shown, run = shown + run, ""
        self.held = run
        self.visible = self.visible or bool(shown)
        return shown

    def release(self, *, visible: bool = False) -> str:
        """Show what is held: a visible character follows."""
        held, self.held = self.held, ""
        self.visible = self.visible or visible
        return held

    def end(self) -> str:
        """The text ends here: what of the white space that is held is shown."""
        held, self.held = self.held, ""
        dropped = self._called or (self._trims and self.opened and not self.visible)
        return "" if dropped else held

    def before_call(self) -> None:
        """A call follows: white space alone is not content."""
        if self._trims and not self.visible:
            self.held = ""
        self._called = True

    @property
    def flags(self) -> int:
        """The state beside ``held``, as bits."""
        return (
            (_VISIBLE if self.visible else 0)
            | (_CALLED if self._called else 0)
            | (_OPENED if self.opened else 0)
            | (_OVER if self._over else 0)
        )

    @flags.setter
    def flags(self, flags: int) -> None:
        self.visible, self._called = bool(flags & _VISIBLE), bool(flags & _CALLED)
        self.opened, self._over = bool(flags & _OPENED), bool(flags & _OVER)
