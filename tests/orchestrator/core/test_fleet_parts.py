"""Small pure parts around members: quantiles, common limits, the generation of a request."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.capabilities import Facts
from orchestrator.core.common import Common, common
from orchestrator.core.generation import Generation
from orchestrator.core.recent import Recent, quantiles


@given(st.lists(st.floats(0, 1e6), min_size=1), st.sampled_from([0.01, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_the_least_value_that_enough_do_not_exceed(values: list[float], share: float) -> None:
    found = quantiles(sorted(values), share)
    assert found is not None
    assert sum(value <= found[0] for value in values) >= share * len(values)
    assert sum(value < found[0] for value in values) < share * len(values)


def test_only_the_last_values_count() -> None:
    recent = Recent(3)
    assert recent.quantiles(0.5) is None
    for value in (100.0, 1.0, 2.0, 3.0):
        recent.add(value)
    assert recent.quantiles(0.5, 1.0) == [2.0, 3.0]
    assert len(recent) == 3


def test_what_all_engines_can_take() -> None:
    assert common([], []) == Common()
    prefill = [Facts(vocab_size=100, max_model_len=10), Facts()]
    decode = [Facts(vocab_size=90, max_model_len=20, structured_outputs=True)]
    assert common(prefill, decode) == Common(90, 10, structured_outputs=True)
    decode.append(Facts(structured_outputs=False))
    assert common(prefill, decode).structured_outputs is False
    assert common([Facts(structured_outputs=True)], []).structured_outputs is None, "decode does them"


def test_the_first_engine_settles_the_generation_until_an_attempt_begins_anew() -> None:
    generation = Generation()
    assert generation.allows("1", anew=False)
    generation.settle("1")
    assert not generation.allows("2", anew=False)
    assert generation.allows("2", anew=True)
    generation.settle("2")
    assert not generation.allows("1", anew=False)
    assert generation.renders("")


def test_a_render_tier_of_one_generation_settles_it_for_good() -> None:
    generation = Generation()
    generation.rendered_by("1")
    assert not generation.allows("2", anew=True)
    assert generation.allows("1", anew=False)
    assert generation.renders("1")
    assert not generation.renders("")
