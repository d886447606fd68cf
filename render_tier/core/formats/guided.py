"""Calls under a JSON grammar, for formats without a grammar of their own (`ToolFormat.bare_json`,
`ToolFormat.bare_list`).

With tool_choice "required" the engine holds the model to an array ``[{"name": ..., "parameters": {...}}]``,
with a named function to the JSON of its arguments (or to such a list with one call in it). Where the answer
begins otherwise, because no grammar was in force, it is read in the family's own format.
"""

from __future__ import annotations

from dataclasses import replace

from render_tier.core.bare_call import BareCallFormat
from render_tier.core.body import BodyFormat
from render_tier.core.choice import ChoiceFormat
from render_tier.core.json_call import JsonCallFormat
from render_tier.core.json_calls import JsonCallsFormat
from render_tier.core.table import CONTENT, State, ToolFormat

_ARRAY = JsonCallsFormat(
    JsonCallFormat(name_key="name", arguments_keys=("parameters", "arguments"), optional=True), empty=True
)


def answer_format(tool: ToolFormat, *, required: bool, function: str | None) -> ToolFormat:
    """The format of the answers to a request: tool_choice "required", or one that names ``function``."""
    if not (tool.bare_json or tool.bare_list) or not (required or function):
        return tool
    if function and not tool.bare_list:
        body: BodyFormat = BareCallFormat(separator=r"(?=\S)", function=function)
        return _starting_with(tool, ChoiceFormat(starts="{", body=body))
    return _starting_with(tool, ChoiceFormat(starts="[", body=_ARRAY))


def _starting_with(tool: ToolFormat, body: BodyFormat) -> ToolFormat:
    on = tool.states[CONTENT].on if tool.bare_list else {}
    guided = {
        "guided": State(body=body, on=on, done="guided_end", failed=CONTENT, gives_back=False),
        "guided_end": State(),
    }
    return replace(tool, states={**tool.states, **guided}, initial="guided", blanks="drop_alone")
