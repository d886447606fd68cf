"""The data of images that render leaves out of its replies, and is put in from here."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec

from orchestrator.core.item_store import NAMED, ItemStore
from orchestrator.core.legs import prefill_leg, read_render_reply, with_known_data
from orchestrator.core.long_strings import LONG, written

DATA = "QUJD" * (LONG // 4)
FEATURES: dict[str, Any] = {
    "mm_hashes": {"image": ["aa", "bb", "aa"]},
    "mm_placeholders": {"image": [{"offset": at, "length": 1} for at in (0, 2, 4)]},
    "kwargs_data": {"image": [None, DATA + "Qg==", None]},
    "mm_metadata": None,
}


def test_the_least_recently_used_go() -> None:
    store = ItemStore(20)
    for name, form in (("a", "f"), ("b", "f"), ("a", "f"), ("c", "f")):
        store.keep(name, form, memoryview(b"0123456789"))
    assert list(store.latest()) == ["c", "a"]
    store.keep("c", "g", memoryview(b"01234"))
    assert (store.latest()["c"].form, bytes(store.latest()["c"].data)) == ("g", b"01234")
    assert store.bytes == 15
    store.keep("d", "f", memoryview(bytes(21)))
    assert (list(store.latest()), store.bytes) == (["c", "a"], 15), "what does not fit drives nothing out"


def test_so_many_are_named() -> None:
    store = ItemStore(10_000)
    for number in range(NAMED + 5):
        store.keep(str(number), "f", memoryview(b"1"))
    assert list(store.latest()) == [str(number) for number in range(NAMED + 4, 4, -1)]


def test_what_is_known_is_put_in() -> None:
    reply = {"token_ids": [1, 2, 3, 4, 5], "sampling_params": {}, "features": FEATURES}
    prompt = replace(read_render_reply(msgspec.json.encode(reply)), form="f")
    assert prompt.lacks_data
    store = ItemStore(10 * LONG)
    store.keep("aa", "g", memoryview(json.dumps(DATA).encode()))
    assert with_known_data(prompt, store.latest()).lacks_data, "it was made in another way"
    store.keep("aa", "f", memoryview(json.dumps(DATA).encode()))
    whole = with_known_data(prompt, store.latest())
    assert not whole.lacks_data
    assert [item.data_bytes for item in whole.media] == [LONG + 2, LONG + 6, LONG + 2]
    leg = json.loads(b"".join(written(prefill_leg(whole, "x", "top"))))
    assert leg["features"] == FEATURES | {"kwargs_data": {"image": [DATA, DATA + "Qg==", DATA]}}
    # It is kept for the prompt's time, whatever becomes of the store.
    assert whole.features_bytes > 3 * LONG
