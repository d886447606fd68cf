"""Tool calls as a Python list, which is the whole answer: ``[name(key=value), ...]``.

Llama 3.2, ToolACE; and Llama 4, which may put the list between ``<|python_start|>`` and ``<|python_end|>``. A
list that does not begin the answer is text; text after the list is shown.
"""

from __future__ import annotations

from render_tier.core.choice import ChoiceFormat
from render_tier.core.python_calls import PythonCallsFormat
from render_tier.core.table import CONTENT, Region, State, ToolFormat

_LIST = ChoiceFormat(starts="[", body=PythonCallsFormat())
_END = {"<|python_end|>": "end"}

PYTHONIC = ToolFormat(
    name="pythonic",
    states={
        "answer": State(body=_LIST, done=CONTENT, failed=CONTENT, gives_back=False),
        CONTENT: State(text=Region.CONTENT),
    },
    initial="answer",
    blanks="drop_alone",
    bare_json=True,
    keeps_special_tokens=False,
)

LLAMA4_PYTHONIC = ToolFormat(
    name="llama4_pythonic",
    states={
        "answer": State(
            body=_LIST, on={"<|python_start|>": "list"}, done="end", failed=CONTENT, gives_back=False
        ),
        "list": State(body=_LIST, on=_END, done="end", failed=CONTENT),
        "end": State(text=Region.CONTENT, on=_END),
        CONTENT: State(text=Region.CONTENT),
    },
    initial="answer",
    blanks="drop_alone",
    bare_json=True,
)
