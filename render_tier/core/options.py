"""What a request says about the reading of its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from render_tier.core.stops import StopTable
from render_tier.core.tool_schema import NO_TOOLS, ToolSchemas

StopScope = Literal["all", "content"]


@dataclass(frozen=True)
class MachineOptions:
    """``stop_scope``: "all" matches stop strings in the whole output, markers included, as the coupled server
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
