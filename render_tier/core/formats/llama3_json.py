"""Llama 3 tool calls: objects ``{"name": ..., "parameters": {...}}`` anywhere in the text, no markers.

Also Llama 4's JSON mode. ``<|python_tag|>`` may stand before the first one; before anything else it is text.
An object that does not begin as a call does is text, and so is all after it: it may be the answer to a
request for JSON. Text before the first call is shown, text after it is not.
"""

from __future__ import annotations

from render_tier.core.choice import ChoiceFormat
from render_tier.core.json_call import JsonCallFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_BODY = JsonCallFormat(
    name_key="name",
    arguments_keys=("parameters", "arguments"),
    first_keys=frozenset({"name", "parameters", "arguments", "type", "id"}),
)

_TAG = {"<|python_tag|>": "tagged"}

LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    aliases=("llama4_json",),
    states={
        CONTENT: State(text=Region.CONTENT, on={"{": "call", **_TAG}),
        "tagged": State(body=ChoiceFormat(starts="{", body=_BODY), on=_TAG, done="after", failed="prose"),
        "call": State(body=_BODY, done="after", failed="prose"),
        "prose": State(text=Region.CONTENT),
        "after": State(on={"{": "next_call"}),
        "next_call": State(body=_BODY, done="after", failed="after"),
    },
    blanks="drop_alone",
)
