"""Whether a chat template takes system messages only at the beginning of a conversation.

Decided by trying, as vLLM does, and in plain Jinja as there: without the special tokens and functions that
templates otherwise have, so a template that cannot do without them counts as one that refuses.
"""

from __future__ import annotations

from collections.abc import Iterable

import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROLES = ("system", "user", "system", "user")


def refuses_inline_system(templates: Iterable[str | None]) -> bool:
    """Of the model's own templates, which are trusted; None stands for a model without."""
    return any(source is None or not _renders(source) for source in templates)


def _renders(source: str) -> bool:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    messages = [{"role": role, "content": "t"} for role in ROLES]
    try:
        environment.from_string(source).render(messages=messages, add_generation_prompt=False)
    except Exception:  # a template may raise anything
        return False
    return True
