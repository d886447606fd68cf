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
from render_tier.multimodal.item import ImageProcessor, UnsupportedProcessor
from render_tier.multimodal.options import PROCESSOR, OptionRefused, image_options
from render_tier.multimodal.placeholders import Range, expand, moved
from render_tier.multimodal.prepared import ImagePreparation, PreparedImage
from render_tier.multimodal.processors.choice import image_processor

UNCHANGED = {"do_rescale": False, "do_normalize": False}
"""Processor settings with which pixels keep their values."""
FLOAT_TYPES: Mapping[str, FloatType] = {"bfloat16": "bfloat16", "float16": "float16"}


@dataclass(frozen=True)
class PromptImage:
    image: PreparedImage
    name_hash: str | None = None
    """Of the client's name for it."""

    @property
    def mm_hash(self) -> str:
        return self.image.mm_hash if self.name_hash is None else self.name_hash


class Vision:
    """Thread-safe."""

    def __init__(
        self, preparation: ImagePreparation, processor_with: Callable[[Mapping[str, Any]], ImageProcessor]
    ) -> None:
        """``preparation``: where a request says nothing of it. ``processor_with``: the model's processor with
        settings of a request; raises UnsupportedProcessor."""
        self.preparation = preparation
        self._processor_with = processor_with
        self.mark = preparation.family.mark
        self.token = preparation.family.token

    def prepared_with(
        self,
        mm_processor_kwargs: Mapping[str, Any] | None,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None,
    ) -> ImagePreparation:
        """As a request says. Raises OptionRefused."""
        usual = self.preparation
        if not mm_processor_kwargs and not media_io_kwargs:
            return usual
        options = image_options(
            mm_processor_kwargs, media_io_kwargs, processor=usual.processor, most=usual.max_pixels
        )
        try:
            processor = self._processor_with(options.processor)
        except UnsupportedProcessor as error:
            raise OptionRefused(PROCESSOR, str(error)) from None
        return usual.with_options(options, processor)

    def expand(
        self, ids: Sequence[int], replacements: Sequence[Replacement]
    ) -> tuple[list[int], list[Range]]:
        """Raises MisplacedImages."""
        return expand(ids, self.preparation.family, replacements)

    def moved(self, ranges: Sequence[Range], before: Sequence[int], after: Sequence[int]) -> list[Range]:
        """As `placeholders.moved`."""
        return moved(ranges, before, after)

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
    masks_are_read: bool,
    processor_kwargs: Mapping[str, Any],
    max_pixels: int,
    cache_bytes: int,
) -> Vision | None:
    """None for a model whose images are not taken here. ``dtype``: of pixel values in engines, "auto" for the
    model's own. ``engine_normalizes``: whether engines do, where the family can leave it to them.
    ``masks_are_read``: whether engines do so. Raises ModelLoadError."""
    family = family_of(assets.config, assets.vocabulary, encode)
    if family is None:
        return None
    as_bytes = engine_normalizes and family.engine_normalizes
    own = read_json_object(assets.directory / "preprocessor_config.json") or {}
    whole = read_json_object(assets.directory / "processor_config.json")

    def processor_with(asked: Mapping[str, Any]) -> ImageProcessor:
        overrides = {**processor_kwargs, **asked, **(UNCHANGED if as_bytes else {})}
        return image_processor(assets.config, own, overrides, whole)

    try:
        processor = processor_with({})
    except UnsupportedProcessor as error:
        raise ModelLoadError(str(error)) from None
    return Vision(
        ImagePreparation(
            family,
            processor,
            model=assets.name,
            float_type=float_type(assets.config) if dtype == "auto" else dtype,  # type: ignore[arg-type]
            as_bytes=as_bytes,
            masks_are_read=masks_are_read,
            max_pixels=max_pixels,
            cache_bytes=cache_bytes,
        ),
        processor_with,
    )


def float_type(config: Mapping[str, Any]) -> FloatType:
    """What engines run the model in by default: its own type, but bfloat16 for one stored in float32."""
    for part in (config, text_config(dict(config)), config.get("vision_config") or {}):
        for name in ("dtype", "torch_dtype"):
            named = part.get(name)
            if isinstance(named, str):
                return FLOAT_TYPES.get(named.removeprefix("torch."), "bfloat16")
    return "bfloat16"
