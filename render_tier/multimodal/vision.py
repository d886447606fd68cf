"""A vision-language model's images, as the rest of the render tier deals with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from render_tier.model import ModelAssets, ModelLoadError
from render_tier.model.context_length import text_config
from render_tier.model.files import read_json_object
from render_tier.multimodal.encoding import FloatType
from render_tier.multimodal.families import Replacement, family_of
from render_tier.multimodal.features import Features, Payload, features_of
from render_tier.multimodal.item import UnsupportedProcessor
from render_tier.multimodal.placeholders import Range, expand
from render_tier.multimodal.prepared import ImagePreparation, PreparedImage
from render_tier.multimodal.processors.choice import image_processor

UNCHANGED = {"do_rescale": False, "do_normalize": False}
"""Processor settings with which pixels keep their values."""
FLOAT_TYPES: Mapping[str, FloatType] = {"bfloat16": "bfloat16", "float16": "float16"}


@dataclass(frozen=True)
class PromptImage:
    image: PreparedImage
    uuid: str | None = None
    """The client's name for it."""

    @property
    def mm_hash(self) -> str:
        return self.image.mm_hash if self.uuid is None else self.uuid


class Vision:
    """Thread-safe."""

    def __init__(self, preparation: ImagePreparation) -> None:
        self.preparation = preparation
        self.mark = preparation.family.mark
        self.token = preparation.family.token

    def expand(
        self, ids: Sequence[int], replacements: Sequence[Replacement]
    ) -> tuple[list[int], list[Range]]:
        """Raises MisplacedImages."""
        return expand(ids, self.preparation.family, replacements)

    def features(
        self,
        images: Sequence[PromptImage],
        ranges: Sequence[Range],
        *,
        prompt_length: int,
        payload: Payload,
    ) -> Features:
        hashes = [each.mm_hash for each in images]
        prepared = [each.image for each in images]
        return features_of(prepared, hashes, ranges, prompt_length=prompt_length, payload=payload)


def open_vision(
    assets: ModelAssets,
    encode: Callable[[str], list[int]],
    *,
    dtype: str,
    engine_normalizes: bool,
    processor_kwargs: Mapping[str, Any],
    max_pixels: int,
    cache_bytes: int,
) -> Vision | None:
    """None for a model whose images are not taken here. ``dtype``: of pixel values in engines, "auto" for the
    model's own. ``engine_normalizes``: whether engines do, where the family can leave it to them. Raises
    ModelLoadError."""
    family = family_of(assets.config, assets.vocabulary, encode)
    if family is None:
        return None
    as_bytes = engine_normalizes and family.engine_normalizes
    overrides = {**processor_kwargs, **(UNCHANGED if as_bytes else {})}
    try:
        processor = image_processor(
            assets.config,
            read_json_object(assets.directory / "preprocessor_config.json") or {},
            overrides,
            read_json_object(assets.directory / "processor_config.json"),
        )
    except UnsupportedProcessor as error:
        raise ModelLoadError(str(error)) from None
    return Vision(
        ImagePreparation(
            family,
            processor,
            model=assets.name,
            float_type=float_type(assets.config) if dtype == "auto" else dtype,  # type: ignore[arg-type]
            as_bytes=as_bytes,
            max_pixels=max_pixels,
            cache_bytes=cache_bytes,
        )
    )


def float_type(config: Mapping[str, Any]) -> FloatType:
    """What engines run the model in by default: its own type, but bfloat16 for one stored in float32."""
    for part in (config, text_config(dict(config)), config.get("vision_config") or {}):
        for name in ("dtype", "torch_dtype"):
            named = part.get(name)
            if isinstance(named, str):
                return FLOAT_TYPES.get(named.removeprefix("torch."), "bfloat16")
    return "bfloat16"
