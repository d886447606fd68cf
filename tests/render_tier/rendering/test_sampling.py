"""Sampling fields to engine parameters: where values come from, what is clamped, what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.generate import SamplingParams
from render_tier.rendering.sampling import SamplingBuilder, SamplingDefaults

EOS = (151645, 151643)


def builder(generation_config: dict[str, Any] | None = None, **changes: Any) -> SamplingBuilder:
    values: dict[str, Any] = {
        "generation_config": generation_config or {},
        "max_tokens_cap": None,
        "eos_token_ids": EOS,
        "vocab_size": 151936,
        "max_model_len": 1000,
        "max_logprobs": 20,
        "max_choices": 16384,
        **changes,
    }
    return SamplingBuilder(SamplingDefaults(**values))


def build(generation_config: dict[str, Any] | None = None, **fields: Any) -> SamplingParams:
    request = ChatCompletionRequest.parse({"messages": [], **fields})
    return builder(generation_config).build(
        request, max_tokens=100, skip_special_tokens=True, constraint=None
    )


def build_completion(**fields: Any) -> SamplingParams:
    request = CompletionRequest.parse({"prompt": "x", **fields})
    return builder().build(request, max_tokens=100, skip_special_tokens=True, constraint=None)


class TestDefaults:
    def test_request_over_model_over_openai(self) -> None:
        model = {"temperature": 0.6, "top_k": 20}
        assert (build().temperature, build().top_k) == (1.0, 0)
        assert (build(model).temperature, build(model).top_k) == (0.6, 20)
        assert build(model, temperature=0.9).temperature == 0.9
        assert build(model, temperature=None).temperature == 0.6

    def test_max_tokens_is_on_the_wire_whatever_its_value(self) -> None:
        for value in (1, 16, 100):
            request = ChatCompletionRequest.parse({"messages": []})
            params = builder().build(request, max_tokens=value, skip_special_tokens=True, constraint=None)
            assert msgspec.to_builtins(params)["max_tokens"] == value

    def test_parameters_survive_the_wire(self) -> None:
        params = build(
            temperature=0.5,
            n=2,
            seed=3,
            stop="x",
            logit_bias={"7": 1},
            bad_words=["a"],
            vllm_xargs={"a": [1, "b"]},
        )
        assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params


class TestMaxTokens:
    @pytest.mark.parametrize(
        ("asked", "own_default", "cap", "prompt", "granted"),
        [
            (None, None, None, 10, 990),
            (50, None, None, 10, 50),
            (995, None, None, 10, 990),
            (None, 64, None, 10, 64),
            (500, 64, None, 10, 500),  # the model's default is no limit
            (500, 64, 128, 10, 128),  # the operator's is
            (None, None, 128, 10, 128),
            (None, None, None, 1000, 0),
        ],
    )
    def test_granted(self, asked: Any, own_default: Any, cap: Any, prompt: int, granted: int) -> None:
        config = {} if own_default is None else {"max_new_tokens": own_default}
        assert builder(config, max_tokens_cap=cap).max_tokens(asked, prompt) == granted

    def test_more_than_the_context_is_refused(self) -> None:
        builder().check_asked(1000, "max_tokens")
        with pytest.raises(BadRequest, match="max_completion_tokens=1001") as refused:
            builder().check_asked(1001, "max_completion_tokens")
        assert refused.value.param == "max_completion_tokens"

    def test_none_left_is_refused(self) -> None:
        request = ChatCompletionRequest.parse({"messages": []})
        with pytest.raises(BadRequest, match="max_tokens must be at least 1, got 0"):
            builder().build(request, max_tokens=0, skip_special_tokens=True, constraint=None)


class TestStops:
    def test_eos_is_added_to_the_stop_tokens_unless_ignored(self) -> None:
        assert build().stop_token_ids == list(EOS)
        assert build(stop_token_ids=[5, 5, 151645]).stop_token_ids == [5, 151645, 151643]
        assert build(stop_token_ids=[5], ignore_eos=True).stop_token_ids == [5]
        assert build(ignore_eos=True).stop_token_ids is None

    @pytest.mark.parametrize(
        ("stop", "listed"), [("x", ["x"]), (["a", "b"], ["a", "b"]), ([], None), (None, None)]
    )
    def test_strings_are_a_list(self, stop: Any, listed: Any) -> None:
        assert build(stop=stop).stop == listed


def test_greedy_needs_no_other_parameter() -> None:
    params = build(temperature=0, top_p=0.5, top_k=5, min_p=0.1)
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.0, 1.0, 0, 0.0)


def test_tiny_temperature_is_raised() -> None:
    assert build(temperature=0.001).temperature == 0.01


def test_no_seed_is_minus_one() -> None:
    assert build(seed=-1).seed is None
    assert build(seed=0).seed == 0


def test_bias_is_clamped() -> None:
    assert build(logit_bias={"5": -200, " 6": 1}).logit_bias == {"5": -100.0, "6": 1.0}


def test_logprobs() -> None:
    assert build(logprobs=True, top_logprobs=3).logprobs == 3
    assert build(logprobs=True).logprobs == 0
    assert build().logprobs is None
    assert build(logprobs=True, top_logprobs=2, echo=True).prompt_logprobs == 2
    assert build_completion(logprobs=2, echo=True).prompt_logprobs == 2
    assert build(logprobs=True, top_logprobs=2, logprob_token_ids=[4]).logprobs is None
    unbounded = builder(max_logprobs=-1)
    request = ChatCompletionRequest.parse({"messages": [], "logprobs": True, "top_logprobs": -1})
    assert unbounded.build(request, max_tokens=1, skip_special_tokens=True, constraint=None).logprobs == -1


def test_transfer_params_travel_in_extra_args() -> None:
    params = build(vllm_xargs={"a": 1}, kv_transfer_params={"b": 2}, ec_transfer_params={"c": 3})
    assert params.extra_args == {"a": 1, "kv_transfer_params": {"b": 2}, "ec_transfer_params": {"c": 3}}
    assert build(kv_transfer_params={}).extra_args is None


def test_errors_stay_small() -> None:
    huge, number = "x" * 1_000_000, 10**4000
    for fields in (
        {"logit_bias": {huge: 1}},
        {"bad_words": ["", huge]},
        {"n": number},
        {"min_tokens": number},
        {"stop_token_ids": [number]},
        {"prompt_logprobs": number},
        {"top_k": -number},
    ):
        with pytest.raises(BadRequest) as refused:
            build(**fields)
        assert len(refused.value.encode()) < 1000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, None),
        ({"n": 16385}, None),
        ({"n": 2, "temperature": 0}, None),
        ({"presence_penalty": 2.1}, None),
        ({"frequency_penalty": -2.1}, None),
        ({"repetition_penalty": 0}, None),
        ({"repetition_penalty": float("nan")}, None),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": -2}, None),
        ({"min_p": 1.1}, None),
        ({"min_tokens": -1}, None),
        ({"min_tokens": 101}, None),
        ({"stop": [""]}, None),
        ({"bad_words": ["a", ""]}, None),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"151936": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"stop_token_ids": [151936]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [2**70]}, "allowed_token_ids"),
        ({"logprobs": True, "logprob_token_ids": [151936]}, "logprob_token_ids"),
        ({"logprobs": True, "logprob_token_ids": [1] * 129}, "logprob_token_ids"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"vllm_xargs": {"a": 2**64}}, "extra_args"),
        ({"kv_transfer_params": {"a": [{"b": -(2**63) - 1}]}}, "extra_args"),
        ({"repetition_detection": {"max_pattern_size": -1}}, None),
        ({"repetition_detection": {"max_pattern_size": 2, "min_pattern_size": 3}}, None),
        ({"repetition_detection": {"max_pattern_size": 2, "min_count": 1}}, None),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refused(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        build(**fields)
    assert (refused.value.type, refused.value.param) == ("BadRequestError", param)


@pytest.mark.parametrize("key", ["x", "-1"])
def test_a_refused_bias_is_told_as_what_it_is(key: str) -> None:
    with pytest.raises(BadRequest, match="value=<dict of 2 items>"):
        build(logit_bias={"1": 1, key: 1})
