"""``/status`` for a browser: a page that shows the JSON object, and asks for it anew while it is looked at.

The page holds no data. Its style and its script are inline, and named by their digests in its content
security policy; it loads nothing else, runs nothing else and talks to this server alone. What members report
of themselves is only ever set as text.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import Final

_FILES: Final = files(__package__)
_STYLE: Final = _FILES.joinpath("page.css").read_text("utf-8")
_SCRIPT: Final = _FILES.joinpath("page.js").read_text("utf-8")

_FRAME: Final = _FILES.joinpath("page.html").read_text("utf-8")

PAGE: Final = _FRAME.replace("/*STYLE*/", _STYLE).replace("/*SCRIPT*/", _SCRIPT)


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


HEADERS: Final = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_source(_STYLE)}; script-src {_source(_SCRIPT)}; img-src data:;"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}


def wants_page(accept: str) -> bool:
    """Whether a request with this ``Accept`` is a browser's that shows what it gets."""
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    return "text/html" in kinds and "application/json" not in kinds
