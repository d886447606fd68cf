"""What is believed of an engine's images, and the requests that name them."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.given_items import GivenItems
from orchestrator.core.legs import RenderedPrompt, named_apart, naming, read_render_reply
from orchestrator.core.media import Item


def item(name: str, size: int = 10) -> Item:
    return Item(name, 0, 1, size)


def test_what_was_answered_is_there_until_it_is_forgotten() -> None:
    engine = GivenItems()
    assert engine.among([item("a")], "f") == frozenset()
    engine.answered([item("a"), item("b")], "f", 100)
    assert engine.among([item("a"), item("b"), item("c")], "f") == {"a", "b"}
    assert engine.among([item("a", size=11)], "f") == frozenset(), "another item under the same name"
    assert engine.among([item("a")], "g") == frozenset(), "made in another way"
    engine.forget()
    assert engine.among([item("a")], "f") == frozenset()
    engine.answered([item("a")], "f", 10)
    assert engine.among([item("a")], "f") == {"a"}


class Lru:
    """As an engine drops what it keeps."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held: OrderedDict[str, int] = OrderedDict()

    def take(self, items: list[Item]) -> None:
        for each in items:
            self.held.pop(each.hash, None)
            self.held[each.hash] = each.data_bytes
            while sum(self.held.values()) > self.size:
                self.held.popitem(last=False)


@given(
    st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3), max_size=40),
    st.integers(0, 60),
    st.integers(0, 30),
)
def test_an_engine_with_more_room_has_what_is_believed(
    requests: list[list[str]], room: int, more: int
) -> None:
    sizes = {name: 5 + 3 * index for index, name in enumerate("abcdefgh")}
    believed, engine = GivenItems(), Lru(room + more)
    everything = [item(name, size) for name, size in sizes.items()]
    for names in requests:
        items = [item(name, sizes[name]) for name in names]
        believed.answered(items, "f", room)
        engine.take(items)
        known = believed.among(everything, "f")
        assert known <= engine.held.keys()
        assert sum(sizes[name] for name in known) <= room


FEATURES: dict[str, Any] = {
    "mm_hashes": {"image": ["aa", "bb"], "video": ["cc"]},
    "mm_placeholders": {
        "image": [{"offset": 0, "length": 1}, {"offset": 2, "length": 2}],
        "video": [{"offset": 4, "length": 1}],
    },
    "kwargs_data": {"image": ["cGl4", "bW9yZQ=="], "video": ["dmlk"]},
    "mm_metadata": {"image": ["Z3JpZA==", None], "video": ["Z3I="]},
    "of_a_later_version": [1],
}


def prompt(**features: Any) -> RenderedPrompt:
    reply = {"token_ids": [1, 2, 3, 4, 5], "sampling_params": {}, "features": FEATURES | features}
    return read_render_reply(msgspec.json.encode(reply))


def features_of(prompt: RenderedPrompt) -> Any:
    return json.loads(bytes(prompt.fields["features"]))


def test_items_are_named_without_their_data() -> None:
    whole = prompt()
    assert [each.data_bytes for each in whole.media] == [6, 10, 6]
    named = naming(whole, {"aa", "cc"})
    assert features_of(named) == FEATURES | {
        "kwargs_data": {"image": [None, "bW9yZQ=="], "video": [None]},
        "mm_metadata": {"image": [None, None], "video": [None]},
    }
    assert named.lacks_data
    assert named.media == whole.media
    without_metadata = naming(prompt(mm_metadata=None), {"bb"})
    assert features_of(without_metadata) == FEATURES | {
        "kwargs_data": {"image": ["cGl4", None], "video": ["dmlk"]},
        "mm_metadata": None,
    }


def test_a_name_that_a_client_may_have_chosen_is_no_contents_hash() -> None:
    chosen = prompt()
    apart = named_apart(chosen)
    names = features_of(apart)["mm_hashes"]
    assert [each.hash for each in apart.media] == [*names["image"], *names["video"]]
    assert all(each.hash.startswith("named-") for each in apart.media)
    assert len({each.hash for each in apart.media}) == 3
    by_content = replace(chosen, form="f")
    assert named_apart(by_content) is by_content
