"""Who is let in, field by field, and who is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.capabilities import NOTHING, Capabilities, Facts
from orchestrator.core.parity import (
    EQUAL_ENGINES,
    EQUAL_IN_ROLE,
    EQUAL_RENDERS,
    Difference,
    Joiner,
    Role,
    fits,
    judge,
    release,
)

OTHERWISE: dict[str, tuple[Any, Any]] = {
    "model": ("/m/a", "/m/b"),
    "revision": ("1", "2"),
    "tokenizer": ("f", "g"),
    "vocab_size": (1000, 1001),
    "max_model_len": (4096, 2048),
    "dtype": ("bfloat16", "float32"),
    "kv_dtype": ("auto", "fp8"),
    "block_size": (16, 32),
    "kv_layout": ("LBNHC", "LBHNC"),
    "connector": ("NixlConnector", "NixlPushConnector"),
    "version": ("0.32.0", "0.32.1"),
    "tokens_only": (True, False),
    "structured_outputs": (False, True),
}
"""Two values of each fact that must be equal somewhere."""


def one(role: Role, url: str, generation: str = "", admitted: bool = False, declared: Facts = NOTHING,
        **facts: Any) -> Joiner:  # fmt: skip
    return Joiner(role, url, generation, Capabilities(Facts(**facts), declared), admitted)


def out(*joiners: Joiner, **options: Any) -> dict[str, list[str]]:
    """Those kept out, with the fields that do it."""
    verdicts = judge(joiners, **options)
    assert verdicts.keys() == {(joiner.role, joiner.url) for joiner in joiners}
    return {
        url: [difference.field for difference in found if difference.keeps_out]
        for (_, url), found in verdicts.items()
        if any(difference.keeps_out for difference in found)
    }


def test_those_who_report_nothing_are_let_in() -> None:
    assert out(one("decode", "d"), one("prefill", "p"), one("render", "r")) == {}


@pytest.mark.parametrize("field", EQUAL_ENGINES)
def test_a_prefill_engine_that_differs_from_decode_is_kept_out(field: str) -> None:
    ours, theirs = OTHERWISE[field]
    there = one("decode", "d", admitted=True, **{field: ours})
    assert out(there, one("prefill", "p", **{field: ours})) == {}
    assert out(there, one("prefill", "p", **{field: theirs})) == {"p": [field]}
    assert out(there, one("prefill", "p")) == {}, "what is not known is not compared"


@pytest.mark.parametrize("field", EQUAL_ENGINES + EQUAL_IN_ROLE)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_engines_of_one_role_are_alike(field: str, role: Role) -> None:
    ours, theirs = OTHERWISE[field]
    there = one(role, "a", admitted=True, **{field: ours})
    assert out(there, one(role, "b", **{field: theirs})) == {"b": [field]}


@pytest.mark.parametrize("field", EQUAL_RENDERS)
def test_render_tiers_are_alike(field: str) -> None:
    ours, theirs = OTHERWISE[field]
    assert out(one("render", "a", **{field: ours}), one("render", "b", admitted=True, **{field: theirs})) == {
        "a": [field]
    }


@pytest.mark.parametrize(
    ("prefill", "decode", "wrong"),
    [
        ({"tensor_parallel": 1}, {"tensor_parallel": 2}, None),
        ({"tensor_parallel": 4}, {"tensor_parallel": 2}, "tensor_parallel"),
        ({"max_model_len": 1024}, {"max_model_len": 2048}, None),
        ({"max_model_len": 2048}, {"max_model_len": 1024}, "max_model_len"),
    ],
)
@pytest.mark.parametrize("first", ["p", "d"])
def test_decode_is_not_smaller_than_prefill(
    prefill: dict[str, int], decode: dict[str, int], wrong: str | None, first: str
) -> None:
    pair = (
        one("prefill", "p", admitted=first == "p", **prefill),
        one("decode", "d", admitted=first == "d", **decode),
    )
    assert out(*pair) == ({} if wrong is None else {"d" if first == "p" else "p": [wrong]})


def test_an_engine_under_the_wrong_role_is_kept_out() -> None:
    assert out(one("prefill", "p", kv_role="kv_consumer"), one("decode", "d", kv_role="kv_producer")) == {
        "p": ["kv_role"],
        "d": ["kv_role"],
    }
    assert out(one("prefill", "p", kv_role="kv_both"), one("decode", "d", kv_role="kv_consumer")) == {}


def test_reports_are_held_to_what_is_declared() -> None:
    declared = Facts(revision="7", block_size=16)
    assert out(one("decode", "d", declared=declared, block_size=16)) == {}
    assert out(one("decode", "d", declared=declared, block_size=32)) == {"d": ["block_size"]}
    [difference] = judge([one("decode", "d", declared=declared, block_size=32)])["decode", "d"]
    assert str(difference) == "block_size is 32, the configuration needs 16"


def test_declarations_are_compared_like_reports() -> None:
    assert out(
        one("decode", "d", admitted=True, declared=Facts(revision="7")), one("prefill", "p", revision="8")
    ) == {"p": ["revision"]}


def test_old_versions_are_kept_out() -> None:
    assert out(one("decode", "d", version="0.31.2"), min_version="0.32") == {"d": ["version"]}
    assert out(one("decode", "d", version="0.32.0+cpu"), one("render", "r", version="0.1"),
               min_version="0.32") == {}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "numbers"), [("0.32.1rc2+cpu", (0, 32, 1)), ("v1.2", (1, 2)), ("nightly", ())]
)
def test_a_version_is_compared_by_the_numbers_it_begins_with(version: str, numbers: tuple[int, ...]) -> None:
    assert release(version) == numbers


def test_engines_go_with_the_render_tiers_tokenizer_and_vocabulary() -> None:
    render = one("render", "r", tokenizer="f", vocab_size=100, max_model_len=4096)
    assert out(render, one("decode", "d", tokenizer="g")) == {"d": ["tokenizer"]}
    assert out(render, one("decode", "d", vocab_size=99)) == {"d": ["vocab_size"]}
    assert out(render, one("decode", "d", vocab_size=128)) == {}, "engines pad their vocabulary"
    verdicts = judge([render, one("decode", "d", max_model_len=2048)])
    assert verdicts["decode", "d"] == (
        Difference("max_model_len", 2048, 4096, "at_least", "r", keeps_out=False),
    )


def test_generations_are_judged_by_themselves() -> None:
    assert out(
        one("decode", "d1", "1", revision="a"), one("prefill", "p1", "1", revision="a"),
        one("decode", "d2", "2", revision="b"), one("prefill", "p2", "2", revision="b"),
    ) == {}  # fmt: skip
    render = one("render", "r", "1", tokenizer="f")
    assert out(render, one("decode", "d", "2", tokenizer="g")) == {}
    assert out(render, one("decode", "d", "1", tokenizer="g")) == {"d": ["tokenizer"]}


def test_one_wrong_member_does_not_keep_the_right_ones_out() -> None:
    wrong = one("decode", "first", block_size=128)
    right = [one("decode", f"d{i}", block_size=16) for i in range(3)]
    assert out(wrong, *right) == {"first": ["block_size"]}


def test_who_is_in_stays_in_and_its_end_lets_the_others_in() -> None:
    there = one("decode", "old", admitted=True, block_size=128)
    joiners = [one("decode", f"d{i}", block_size=16) for i in range(3)]
    assert out(there, *joiners).keys() == {"d0", "d1", "d2"}
    assert out(*joiners) == {}


def test_who_is_kept_out_binds_nobody() -> None:
    """Its tokenizer is wrong, so its block size must not keep others out."""
    render = one("render", "r", tokenizer="f")
    alien = one("decode", "alien", admitted=True, tokenizer="g", block_size=128)
    assert out(render, alien, one("decode", "d", block_size=16)) == {"alien": ["tokenizer"]}


facts = st.fixed_dictionaries(
    {},
    optional={
        "revision": st.sampled_from(["a", "b"]),
        "block_size": st.sampled_from([16, 32]),
        "tensor_parallel": st.sampled_from([1, 2]),
        "max_model_len": st.sampled_from([10, 20]),
    },
)
roles: st.SearchStrategy[Role] = st.sampled_from(["prefill", "decode"])
members = st.lists(st.tuples(roles, facts, st.booleans()), max_size=6)


@given(members)
def test_all_that_are_in_agree_and_whoever_is_out_disagrees_with_one_of_them(
    drawn: list[tuple[Role, dict[str, Any], bool]],
) -> None:
    joiners = [one(role, str(i), admitted=i_in, **known) for i, (role, known, i_in) in enumerate(drawn)]
    kept_out = out(*joiners)
    inside = [joiner for joiner in joiners if joiner.url not in kept_out]
    assert out(*inside) == {}
    for joiner in joiners:
        if joiner.url in kept_out:
            again = judge([*(one(j.role, j.url, admitted=True, **dict(j.capabilities.known.items()))
                             for j in inside), one(joiner.role, joiner.url,
                             **dict(joiner.capabilities.known.items()))])  # fmt: skip
            assert again[joiner.role, joiner.url]


def test_kv_fits_where_nothing_known_speaks_against_it() -> None:
    assert fits(Facts(), Facts(block_size=16))
    assert fits(Facts(tensor_parallel=1, max_model_len=5), Facts(tensor_parallel=2, max_model_len=9))
    assert not fits(Facts(tensor_parallel=2), Facts(tensor_parallel=1))
    assert not fits(Facts(revision="a"), Facts(revision="b"))


def test_encoders_are_of_the_same_model_and_need_not_agree_on_more() -> None:
    engines = (
        one("decode", "d", block_size=16, kv_dtype="auto", model="m", ec_connector="x", admitted=True),
    )
    assert out(*engines, one("encode", "e", block_size=32, kv_dtype="fp8", max_model_len=9, model="m")) == {}
    for name in ("model", "revision", "dtype", "version", "ec_connector"):
        there = one("decode", "d", admitted=True, **{name: "1"})
        assert out(there, one("encode", "e", **{name: "2"})) == {"e": [name]}
    assert out(one("encode", "e1", dtype="a", admitted=True), one("encode", "e2", dtype="b")) == {
        "e2": ["dtype"]
    }
    render = one("render", "r", vocab_size=9, max_model_len=99)
    assert out(render, one("encode", "e", vocab_size=8)) == {"e": ["vocab_size"]}
    assert judge([render, one("encode", "e", max_model_len=9)])["encode", "e"] == ()


@pytest.mark.parametrize(
    ("role", "ec_role", "kept_out"),
    [
        ("encode", "ec_producer", False), ("encode", "ec_both", False), ("encode", "ec_consumer", True),
        ("prefill", "ec_consumer", False), ("prefill", "ec_both", False), ("prefill", "ec_producer", True),
        ("decode", "ec_consumer", False), ("decode", "ec_producer", True),
    ],
)  # fmt: skip
def test_an_engine_that_only_encodes_is_an_encoder_and_no_other_is(
    role: Role, ec_role: str, kept_out: bool
) -> None:
    assert out(one(role, "x", ec_role=ec_role)) == ({"x": ["ec_role"]} if kept_out else {})
