"""Run by vLLM's Python, with torchvision beside it: what engines say to chats with images, given the files
themselves, and given what was rendered elsewhere.

Reads `{MODEL: {"directory": PATH, "overrides": MM_PROCESSOR_KWARGS, "chats": CHATS}}` with CHATS
`{CHAT: {"messages": ..., "rendered": GENERATE REQUEST, "pictured": GENERATE REQUEST}}`; each model is one
engine in this process, one after the other. Writes by model `chats`: of each what the engine says to the
messages (`whole`, by vLLM's own renderer) and to the request (`rendered`), and whether it is the same images
that it is given in both cases, in their hashes, places of embeddings and tensors (`fed`); and what it says to
the one with `content_parts` (`pictured`; None without one). And `relayed`: what it says to what vLLM's
own render would send of the first chat, or the error of which it ends.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from tests.vllm import drawn_weights  # noqa: F401
from vllm import LLM
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.entrypoints.scale_out.token_in_token_out.mm_features import (
    extract_mm_features,
    mm_kwargs_from_features,
)
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
from vllm.inputs import EngineInput, TokensPrompt, mm_input, tokens_input
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.media import MediaConnector
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams


class Engine:
    def __init__(self, directory: str, overrides: dict[str, Any]) -> None:
        self._llm = LLM(
            directory,
            mm_processor_kwargs=overrides,
            load_format="drawn",
            trust_remote_code=True,  # which InternVL's own configuration is
            dtype="float32",
            max_model_len=8192,
            max_num_seqs=4,
            kv_cache_memory_bytes=1 << 26,
            enforce_eager=True,
            skip_mm_profiling=True,  # what the largest image would take is not measured: seconds
        )
        self._media = MediaConnector()
        self._engine = self._llm.llm_engine
        self._process = self._engine.input_processor.process_inputs
        self._engine.input_processor.process_inputs = self._note
        self.given: Any = None
        """What the last request's renderer gave the engine."""
        self.images: list[MultiModalFeatureSpec] = []
        """What the engine made of it."""

    def _note(self, request_id: str, given: Any, *more: Any, **named: Any) -> Any:
        request = self._process(request_id, given, *more, **named)
        self.given, self.images = given, request.mm_features or []
        return request

    def whole(self, messages: Any, sampling: SamplingParams) -> Any:
        (output,) = self._llm.chat(messages, sampling.clone(), use_tqdm=False)
        return self._said(output)

    def rendered(self, request: GenerateRequest, masks: Masks | None = None) -> Any:
        given = as_the_endpoint_does(request, masks or {})
        self._engine.add_request("rendered", given, request.sampling_params.clone())
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    last = output
        return self._said(last)

    def pictured(self, given: dict[str, Any], sampling: SamplingParams) -> Any:
        """As its endpoint does with `content_parts`."""
        parts = given["content_parts"]
        prompt = TokensPrompt(
            prompt_token_ids=given["token_ids"],
            multi_modal_data={"image": [self._media.fetch_image(part["url"]) for part in parts]},
            multi_modal_uuids={"image": [part["uuid"] for part in parts]},
        )
        (output,) = self._llm.generate([prompt], sampling.clone(), use_tqdm=False)
        return self._said(output)

    def _said(self, output: RequestOutput) -> Any:
        """The prompt's IDs, and those chosen with the logprobs of each place. Nothing of it is kept: an image
        that is seen again is to be looked at again."""
        self._llm.reset_mm_cache()
        self._engine.reset_encoder_cache()
        assert self._llm.reset_prefix_cache()
        (choice,) = output.outputs
        logprobs = [{token: each.logprob for token, each in place.items()} for place in choice.logprobs]
        return [output.prompt_token_ids, list(choice.token_ids), logprobs]


Masks = dict[str, list[list[bool] | None]]
"""By modality, `is_embed` of each item."""


def masks_of(request: dict[str, Any]) -> Masks:
    """Which vLLM 0.32 leaves unread."""
    features = request["features"] or {"mm_placeholders": {}}
    return {
        modality: [where.get("is_embed") for where in places]
        for modality, places in features["mm_placeholders"].items()
    }


def as_the_endpoint_does(request: GenerateRequest, masks: Masks) -> EngineInput:
    """With ``masks``, as one that reads them does."""
    features = request.features
    if features is None:
        return tokens_input(request.token_ids)
    return mm_input(
        prompt_token_ids=request.token_ids,
        mm_kwargs=MultiModalKwargsItems(mm_kwargs_from_features(features)),
        mm_hashes=features.mm_hashes,
        mm_placeholders={
            modality: [
                PlaceholderRange(where.offset, where.length, None if mask is None else torch.tensor(mask))
                for where, mask in zip(places, masks.get(modality, [None] * len(places)), strict=True)
            ]
            for modality, places in features.mm_placeholders.items()
        },
    )


def seen(image: MultiModalFeatureSpec) -> tuple[Any, ...]:
    return image.modality, image.identifier, image.mm_position.extract_embeds_range(), set(image.data or {})


def same(ours: list[MultiModalFeatureSpec], theirs: list[MultiModalFeatureSpec]) -> bool:
    return [seen(image) for image in ours] == [seen(image) for image in theirs] and all(
        torch.equal(field.data, other.data[name].data)
        for image, other in zip(ours, theirs, strict=True)
        for name, field in image.data.items()
    )


def of_model(directory: str, overrides: dict[str, Any], chats: dict[str, Any]) -> dict[str, Any]:
    engine, answers = Engine(directory, overrides), {}
    relayed = None
    for name, chat in chats.items():
        request = GenerateRequest.model_validate(chat["rendered"])
        rendered, ours = engine.rendered(request, masks_of(chat["rendered"])), engine.images
        whole = engine.whole(chat["messages"], request.sampling_params)
        fed, pictured = same(ours, engine.images), None
        if chat["pictured"] is not None:
            pictured = engine.pictured(chat["pictured"], request.sampling_params)
            assert same(ours, engine.images), "the same images, for the engine to read"
        answers[name] = {"rendered": rendered, "whole": whole, "fed": fed, "pictured": pictured}
        if relayed is None:
            relayed = request.model_copy(update={"features": extract_mm_features(engine.given)})
    try:  # last: the engine may not outlive it
        said = engine.rendered(relayed)
    except ValueError as error:
        said = str(error)
    return {"chats": answers, "relayed": said}


def main() -> None:
    answers = {}
    for name, model in json.load(sys.stdin).items():
        answers[name] = of_model(**model)
        cleanup_dist_env_and_memory()
    print(json.dumps(answers))


main()
