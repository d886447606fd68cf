"""Which chat templates take system messages inside a conversation."""

from __future__ import annotations

import pytest

from render_tier.rendering.system_order import refuses_inline_system

ANYWHERE = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('order') }}"
    "{% endif %}{{ m.content }}{% endfor %}"
)
ADDS_BOS = "{{ bos_token + messages[0].content }}"


@pytest.mark.parametrize(
    ("templates", "refuses"),
    [
        ((ANYWHERE, ANYWHERE), False),
        ((ANYWHERE, FIRST), True),
        ((FIRST, ANYWHERE), True),
        ((None,), True),
        ((ADDS_BOS,), True),
        (("{% for m in messages",), True),
        (("{{ messages | weird }}",), True),
        (("{{ 1 / 0 }}",), True),
    ],
)
def test_by_trying(templates: tuple[str | None, ...], refuses: bool) -> None:
    assert refuses_inline_system(templates) is refuses
