"""Requests with any JSON in any of their fields, drawn by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

MANY = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
SCALAR = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["auto", "none", "required", "user", "text", "json_object", "\ud800", "{}", "x" * 300]),
)
JSON = st.recursive(
    SCALAR,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "role", "content", "function", "name", "json", "prompt_token_ids", "a"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


def body(model: type[Any], required: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some fields of a request model with any JSON in them."""
    names = [name for name in model.model_fields if name not in required]
    return st.builds(
        lambda base, extra: {**base, **extra},
        st.fixed_dictionaries(required),
        st.dictionaries(st.sampled_from(names), JSON, max_size=4),
    )
