"""Qwen3-Coder's calls: ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>``.

Also Qwen3.5 and later, and with other wrappers or small changes Seed-OSS, Step-3.5, MiMo and Nemotron. The
wrapper may be missing, hold several functions, or not be closed. Tags may have white space inside, as
models write them. What stands in a wrapper beside functions, and in a function beside parameters, is not
shown.
"""

from __future__ import annotations

from render_tier.core.argument_writer import Key, Values
from render_tier.core.fragments import blanks, literal, sequence
from render_tier.core.table import CONTENT, Region, State, ToolFormat
from render_tier.core.xml_call import XmlCallFormat

_FUNCTION = "<function="
_INSIDE = blanks(most=8)


def _key(text: str) -> Key:
    return Key(text.lstrip())


def function_calls(
    name: str,
    start: str,
    end: str,
    *,
    aliases: tuple[str, ...] = (),
    trims_newline: bool = True,
    bare_json: bool = False,
) -> ToolFormat:
    """The table of such a family: ``start`` and ``end`` are the wrapper's tags."""
    leads = {start: "wrapper", _FUNCTION: "call"}
    body = XmlCallFormat(
        name_ends={">": False},
        read_name=str.strip,
        parameter=sequence(literal("<"), _INSIDE, literal("parameter"), _INSIDE, literal("=")),
        key_end=">",
        read_key=_key,
        close=sequence(
            literal("<"), _INSIDE, literal("/"), _INSIDE, literal("parameter"), _INSIDE, literal(">")
        ),
        next_closes=True,
        end="</function>",
        exits=(end, start, _FUNCTION),
        values=Values(trims_newline=trims_newline),
    )
    return ToolFormat(
        name=name,
        aliases=aliases,
        states={
            CONTENT: State(text=Region.CONTENT, on=leads),
            "wrapper": State(on={end: CONTENT, _FUNCTION: "call"}, opens_call=True),
            "call": State(
                body=body,
                routes={"</function>": "between", end: CONTENT, **leads},
                failed=CONTENT,
                opens_call=True,
            ),
            "between": State(on={end: CONTENT, **leads}),
        },
        blanks="trim",
        reasoning_ends=frozenset({start}),
        none_drops=True,
        bare_json=bare_json,
    )


QWEN3_CODER = function_calls("qwen3_coder", "<tool_call>", "</tool_call>", aliases=("qwen3_xml",))
