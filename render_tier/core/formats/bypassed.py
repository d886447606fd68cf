"""Answers to a request whose calls are not wanted: no tools, or tool_choice "none".

The text of a call that the model writes all the same is kept, markers included, also where these are special
tokens: without them it could not be told from the answer around it.
"""

from __future__ import annotations

from render_tier.core.table import CONTENT, Region, State, ToolFormat


def bypassed(tool: ToolFormat) -> ToolFormat:
    """The format of such answers of a family that writes its calls as ``tool`` says."""
    if tool.answer_states:
        return ToolFormat(f"{tool.name}, bypassed", tool.answer_states, initial=tool.initial)
    markers = {text: None for state in tool.states.values() for text in (*state.on, *state.inside)}
    states = {CONTENT: State(text=Region.CONTENT, inside=tuple(markers))}
    return ToolFormat("plain", states, keeps_special_tokens=tool.keeps_special_tokens)
