"""DeepSeek V3.2's calls in DSML, a markup with its own bracket token.

``<｜DSML｜function_calls><｜DSML｜invoke name="NAME"><｜DSML｜parameter name="KEY" string="true">VALUE``...
A value declared ``string="true"`` is text, any other is JSON where it can be read as that; the schema then
corrects both. A block of calls ends the turn: text after it is not shown; what opens a block without a call
in it is text. Some models put all arguments into one parameter ``arguments`` or ``input``; they are taken
out of it.
"""

from __future__ import annotations

import re

from render_tier.core.argument_writer import Key, Values
from render_tier.core.awaited import AwaitedFormat
from render_tier.core.fragments import blanks, literal, sequence
from render_tier.core.table import CONTENT, Region, State, ToolFormat
from render_tier.core.xml_call import XmlCallFormat

_INVOKE = '<｜DSML｜invoke name="'
_KEY = re.compile(r'\s*name="([^"]+)"(?:\s+string="([^"]*)")?')


def _key(text: str) -> Key | None:
    match = _KEY.match(text)
    return Key(match[1], text=match[2] == "true") if match is not None else None


def _name(text: str) -> str:
    return text.strip().removesuffix('"').strip()


def dsml_calls(
    name: str, wrapper: str, variants: tuple[str, ...] = (), *, empty_is_text: bool = False
) -> ToolFormat:
    """The table of a DSML family: ``wrapper`` is the tag around calls, ``variants`` what models write for its
    opening. ``empty_is_text``: a wrapper that no call follows is content; else it is not shown."""
    end = f"</｜DSML｜{wrapper}>"
    tags = [f"<｜DSML｜{tag}>" for tag in (wrapper, *variants)]
    body = XmlCallFormat(
        name_ends={">": False},
        read_name=_name,
        parameter=sequence(literal("<｜DSML｜parameter"), blanks(1, 8)),
        key_end=">",
        read_key=_key,
        close=literal("</｜DSML｜parameter>"),
        next_closes=True,
        end="</｜DSML｜invoke>",
        exits=(end, _INVOKE),
        values=Values(wrappers=("arguments", "input")),
    )
    wrapped = State(on={_INVOKE: "call"})
    expectant = State(body=AwaitedFormat(_INVOKE), done="call", failed=CONTENT, inside=("｜DSML｜",))
    return ToolFormat(
        name=name,
        states={
            CONTENT: State(text=Region.CONTENT, on={**dict.fromkeys(tags, "wrapper"), _INVOKE: "call"}),
            "wrapper": expectant if empty_is_text else wrapped,
            "call": State(
                body=body,
                routes={"</｜DSML｜invoke>": "between", end: "between", _INVOKE: "call"},
                failed=CONTENT,
                inside=("｜DSML｜",),
            ),
            "between": State(on={**dict.fromkeys(tags, "again"), _INVOKE: "call"}),
            "again": wrapped,
        },
        blanks="drop_alone",
        reasoning_ends=frozenset(tags),
        none_drops=True,
    )


DEEPSEEK_V32 = dsml_calls("deepseek_v32", "function_calls", empty_is_text=True)
