"""FunctionGemma's calls: ``<start_function_call>call:NAME{key:<escape>VALUE<escape>}<end_function_call>``.

A value is JSON where it can be read as that, else a string, whatever the schema says. What does not start
like a call is text. White space around content and calls is not shown.
"""

from __future__ import annotations

import re

from render_tier.core.argument_writer import Key, Values
from render_tier.core.fragments import Fragment, literal, sequence
from render_tier.core.table import CONTENT, Region, State, ToolFormat
from render_tier.core.xml_call import XmlCallFormat

_START, _END = "<start_function_call>", "}<end_function_call>"
_KEY = re.compile(r"\w+\Z")


def _name(text: str) -> str:
    return text.removeprefix("call:")


def _key(text: str) -> Key | None:
    match = _KEY.search(text)
    return Key(match[0], text=False) if match is not None else None


FUNCTIONGEMMA = ToolFormat(
    name="functiongemma",
    states={
        CONTENT: State(text=Region.CONTENT, on={_START: "call"}),
        "call": State(
            body=XmlCallFormat(
                name_ends={"{": True},
                read_name=_name,
                name_shape=sequence(literal("call:"), Fragment(r"\w{1,256}", r"\w{1,256}")),
                key_end=":<escape>",
                read_key=_key,
                close=literal("<escape>"),
                value_ends=(",", "}"),
                end=_END,
                exits=(_START,),
                values=Values(schemas=False),
            ),
            routes={_END: CONTENT, _START: "call"},
            failed=CONTENT,
            inside=("<escape>", "<end_function_call>"),
            opens_call=True,
        ),
    },
    blanks="trim",
    bare_json=True,
)
