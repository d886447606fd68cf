"""The plan's formulas, against engines in simulated time and by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchmarks.fleet import apart, arrivals, by_chance
from orchestrator.core.capacity import Aims, Limits, Planner, Rates, Unreachable
from orchestrator.core.kv_size import KvSize, UnknownShape, kv_size
from orchestrator.core.queueing import Queue, crowd
from orchestrator.core.workload import Asked, Lengths, drawn, recorded

KV = KvSize(full_layers=32, windowed_layers=0, window=0, layer_bytes=4096)
RATES = Rates(
    prefill_tokens=20_000,
    step=0.008,
    step_per_sequence=0.0002,
    step_per_context_token=2e-8,
    prefill_overhead=0.004,
    render_per_request=0.0003,
    render_per_token=1e-7,
    derender_per_token=2e-5,
)
AIMS = Aims(first_token=1.0, gap=0.025)
LIMITS = Limits(sequences=256, kv_bytes=40e9)
WORKLOADS = {
    "chat": drawn(Lengths(1500, 0.8), Lengths(250, 0.6), 30.0),
    "long prompts": drawn(Lengths(8000, 0.5), Lengths(120, 0.8), 8.0, cached_share=0.4),
    "long answers": drawn(Lengths(300, 0.5), Lengths(1500, 0.5), 12.0),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_predicted_is_what_simulated_engines_do(name: str) -> None:
    """Utilisation within 5%, sequences in decode within 8%, gaps within 8%; first tokens no later than
    predicted, which adds quantiles up, and no sooner than a third of that."""
    workload = WORKLOADS[name]
    plan = Planner(workload, KV, RATES, AIMS, LIMITS).plan()
    asked = arrivals(workload.asked, workload.rate, 4000, seed=7)
    run = apart(
        asked, RATES, prefills=plan.prefill.engines, decodes=plan.decode.engines, sequences=256,
        kv=KV, link=plan.link, choose=by_chance(3),
    )  # fmt: skip
    crowded = plan.decode.crowd
    assert len(run.served) == 4000
    assert run.prefill_busy == pytest.approx(plan.prefill.queue.utilisation, rel=0.05)
    assert run.sequences(plan.decode.engines) == pytest.approx(crowded.mean, rel=0.08)
    assert run.gap(0.5) == pytest.approx(crowded.gap(0.5), rel=0.08)
    assert run.gap(0.99) == pytest.approx(plan.decode.gap, rel=0.08)
    assert plan.prefill.first_token / 3 <= run.first(0.99) <= plan.prefill.first_token


# --- the queue and the crowd


def test_one_server_is_the_textbook_queue() -> None:
    queue = Queue(servers=1, rate=8, service=0.1, variation=1)
    assert queue.waits == pytest.approx(0.8)
    assert queue.mean_wait == pytest.approx(0.1 * 0.8 / 0.2)
    assert queue.wait(0.99) == pytest.approx(math.log(0.8 / 0.01) / (10 - 8))
    assert queue.wait(0.2) == 0, "a fifth does not wait at all"
    assert Queue(1, 8, 0.1, 0.5).mean_wait == pytest.approx(queue.mean_wait / 2), "service without variation"


def test_three_servers_wait_as_erlang_says() -> None:
    """C(3, 2) = 4/9."""
    assert Queue(servers=3, rate=2, service=1, variation=1).waits == pytest.approx(4 / 9)


def test_an_overloaded_queue_waits_without_end() -> None:
    queue = Queue(servers=2, rate=21, service=0.1, variation=1)
    assert (queue.waits, queue.mean_wait, queue.wait(0.5)) == (1.0, math.inf, math.inf)


def test_a_crowd_is_negative_binomial() -> None:
    """Its mean in closed form: (base / slope + 1) * u / (1 - u) with u = load * slope."""
    load, base, slope = 700.0, 0.01, 0.001
    found = crowd(load, base, slope)
    assert sum(found.probabilities) == pytest.approx(1)
    assert found.mean == pytest.approx((base / slope + 1) * 0.7 / 0.3, rel=1e-6)
    assert found.gap(0.99) > found.mean_gap > base


def test_without_slope_a_crowd_is_poisson() -> None:
    found = crowd(100.0, 0.05, 0.0)
    assert found.mean == pytest.approx(5)
    assert found.probabilities[0] == pytest.approx(math.exp(-5))


def test_more_than_can_be_done_is_no_crowd() -> None:
    found = crowd(1000.0, 0.01, 0.001)
    assert not found.stable
    assert (found.mean, found.sequences(0.5), found.gap(0.5)) == (math.inf,) * 3


# --- KV


@pytest.mark.parametrize(
    ("config", "dtype", "per_token"),
    [
        ({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
          "torch_dtype": "bfloat16"}, None, 131_072),
        ({"num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512,
          "qk_rope_head_dim": 64, "dtype": "bfloat16"}, None, 70_272),
        ({"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
          "hidden_size": 1024, "dtype": "bfloat16"}, "fp8", 57_344),
        ({"num_hidden_layers": 4, "num_attention_heads": 2, "hidden_size": 16, "dtype": "float32",
          "layer_types": ["linear_attention"] * 3 + ["full_attention"]}, None, 2 * 16 * 4),
    ],
    ids=["grouped heads", "latent", "8 bit cache", "mostly linear"],
)  # fmt: skip
def test_bytes_of_a_token(config: dict[str, object], dtype: str | None, per_token: int) -> None:
    assert kv_size(config, dtype).bytes_per_token == per_token
    assert kv_size({"text_config": config}, dtype).bytes_per_token == per_token, "of a model with images"


def test_a_window_bounds_what_its_layers_keep() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    config = {"num_hidden_layers": 6, "num_attention_heads": 1, "hidden_size": 8, "dtype": "bfloat16",
              "layer_types": kinds, "sliding_window": 100}  # fmt: skip
    size = kv_size(config)
    assert size.of(50) == 6 * 50 * 32
    assert size.of(1000) == (5 * 100 + 1000) * 32
    assert size.of(1001) - size.of(1000) == size.bytes_per_token


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"dtype": "int4"}, "int4"),
        ({"dtype": ["float32"]}, "not known"),
        ({"dtype": None}, "names no dtype.*kv-dtype"),
        ({"text_config": 5}, "text_config"),
        ({"head_dim": "x"}, "head_dim"),
        ({"num_key_value_heads": "x"}, "num_key_value_heads"),
        ({"sliding_window": "x"}, "sliding_window"),
        ({"layer_types": 5}, "layer_types"),
        ({"layer_types": [None, []]}, "layer_types"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"layer_types": ["strange", "full_attention"]}, "strange"),
        ({"layer_types": ["full_attention"]}, "1 of 2 layers"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
    ],
)
def test_a_configuration_that_does_not_tell_is_refused(change: dict[str, object], named: str) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "dtype": "float32"}
    with pytest.raises(UnknownShape, match=named):
        kv_size({**config, **change})


def test_a_configuration_that_is_no_object_is_refused() -> None:
    with pytest.raises(UnknownShape, match="not an object"):
        kv_size([])


# --- workloads


def test_a_trace_tells_rate_and_bursts() -> None:
    clock = recorded([Asked(10, 5, at=number / 4) for number in range(9)])
    assert (clock.rate, clock.variation) == (4.0, 0.0)
    bursts = recorded([Asked(10, 5, at=at) for at in (0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 6.0)])
    assert (bursts.rate, bursts.variation) == (1.0, 2.0)
    assert recorded(bursts.asked, 50.0).rate == 50.0
    assert recorded(bursts.asked, 50.0).variation == 2.0


@pytest.mark.parametrize(
    ("asked", "rate", "named"),
    [
        ([], 1.0, "empty"),
        ([Asked(1, 1), Asked(1, 1)], None, "no times"),
        ([Asked(1, 1, at=0.0), Asked(1, 1)], 1.0, "some requests"),
    ],
)
def test_a_trace_that_does_not_tell_is_refused(asked: list[Asked], rate: float | None, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        recorded(asked, rate)


def test_what_is_drawn_has_the_mean_and_the_cached_share() -> None:
    workload = drawn(Lengths(2000, 1.0), Lengths(100, 0.5), 1.0, cached_share=0.25)
    assert sum(one.prompt for one in workload.asked) / 1000 == pytest.approx(2000, rel=0.02)
    assert sum(one.output for one in workload.asked) / 1000 == pytest.approx(100, rel=0.02)
    assert all(one.cached == int(one.prompt * 0.25) for one in workload.asked)


# --- plans


def test_prompts_cost_prefill_engines_and_answers_decode_engines() -> None:
    plan = Planner(WORKLOADS["chat"], KV, RATES, AIMS, LIMITS).plan()
    longer = drawn(Lengths(6000, 0.8), Lengths(250, 0.6), 30.0)
    patient, rates = replace(AIMS, first_token=2.0), replace(RATES, step_per_context_token=0.0)
    more = Planner(longer, KV, rates, patient, LIMITS).plan()
    assert more.prefill.engines > 2 * plan.prefill.engines
    assert more.decode.engines <= plan.decode.engines
    assert plan.fabric == pytest.approx(30 * plan.kv_bytes_per_request)
    assert plan.kv_bytes_per_token == 131_072
    cores = 30 * (0.0003 + 1e-7 * 1500 + 2e-5 * 250)
    assert plan.render_cores == pytest.approx(cores, rel=0.03)
    assert plan.render_cores_to_have == 1


def test_a_plan_is_the_smallest_that_meets_the_aims() -> None:
    planner = Planner(WORKLOADS["chat"], KV, RATES, AIMS, LIMITS)
    plan = planner.plan()
    fewer = planner.prefill(plan.prefill.engines - 1, plan.decode.gap)
    assert fewer.first_token > AIMS.first_token or fewer.queue.utilisation > AIMS.utilisation
    assert planner.decode(plan.decode.engines - 1).gap > AIMS.gap
    small = Limits(sequences=256, kv_bytes=6e9)
    tight = Planner(WORKLOADS["chat"], KV, RATES, AIMS, small)
    assert tight.plan().decode.kv_bytes <= 6e9 < tight.decode(plan.decode.engines).kv_bytes


@pytest.mark.parametrize(
    ("aims", "limits", "named"),
    [
        (Aims(first_token=1, gap=0.008), LIMITS, "one sequence alone"),
        (Aims(first_token=0.1, gap=0.025), LIMITS, "without any waiting"),
        (AIMS, Limits(sequences=256, kv_bytes=1e6), "does not fit"),
        (AIMS, Limits(sequences=256, engines=2), "more than 2 decode engines"),
    ],
)
def test_what_no_number_of_engines_meets_is_said(aims: Aims, limits: Limits, named: str) -> None:
    with pytest.raises(Unreachable, match=named):
        Planner(WORKLOADS["chat"], KV, RATES, aims, limits).plan()
