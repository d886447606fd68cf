"""White space that may turn out to stand before a call or at the end of reasoning, where it is not shown.

Held back until the next visible character, a call or the end, so that whole and streamed answers agree. The
hold is bounded: a run longer than the limit counts as visible text and is let go, whatever the chunking.
"""

from __future__ import annotations

from render_tier.core.table import Blanks


class BlankHold:
    """``held``: white space not yet shown. ``visible``: content has had something else than white space."""

    __slots__ = ("_limit", "_trims", "held", "visible")

    def __init__(self, mode: Blanks, limit: int) -> None:
        self._limit = limit
        self._trims = mode == "trim"
        self.held = ""
        self.visible = mode == "keep"

    def feed(self, text: str) -> str:
        """The text that may be shown now."""
        if self._trims:
            return self._trim(text)
        if self.visible:
            return text
        self.held += text  # bounded by the limit
        if self.held.isspace() and len(self.held) <= self._limit:
            return ""
        return self.release(visible=True)

    def _trim(self, text: str) -> str:
        kept = text.rstrip()
        if kept:
            shown, self.held = self.held + kept, text[len(kept) :]
        else:
            shown, self.held = "", self.held + text
        if len(self.held) > self._limit:
            shown += self.held
            self.held = ""
        return shown

    def release(self, *, visible: bool = False) -> str:
        """Show what is held: a visible character follows, or the output ends."""
        held, self.held = self.held, ""
        self.visible = self.visible or visible
        return held

    def before_call(self) -> None:
        """A call follows: white space alone is not content."""
        self.held = ""
