"""A prompt's IDs in parts: the same IDs and the same JSON as one list."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from render_tier.protocol.generate import GenerateRequest, SamplingParams, StreamOptions
from render_tier.rendering.rendered import Rendered
from render_tier.rendering.token_ids import PromptIds, part_of

LISTS = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=5)


@given(LISTS)
def test_parts_are_one_list(lists: list[list[int]]) -> None:
    whole = list(itertools.chain(*lists))
    ids = PromptIds([part_of(each) for each in lists])
    assert len(ids) == len(whole)
    assert ids.to_list() == list(ids) == whole
    assert list(reversed(ids)) == whole[::-1]
    assert ids.json() == msgspec.json.encode(whole)


@given(LISTS, st.text(max_size=5), st.booleans(), st.sampled_from((msgspec.UNSET, ["repaired"])))
def test_the_reply_is_the_requests_own_json(
    lists: list[list[int]], text: str, stream: bool, warnings: list[str] | msgspec.UnsetType
) -> None:
    request = GenerateRequest(
        request_id=text,
        token_ids=[],
        sampling_params=SamplingParams(max_tokens=5, stop=[text]),
        stream=stream,
        stream_options=StreamOptions(include_usage=True) if stream else None,
        token_offsets=[(0, 1)],
        warnings=warnings,
    )
    rendered = Rendered(request, PromptIds([part_of(each) for each in lists]))
    assert b"".join(rendered.encode()) == msgspec.json.encode(rendered.generate_request())
    assert rendered.generate_request().token_ids == list(itertools.chain(*lists))
