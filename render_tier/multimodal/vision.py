"""A vision-language model's images and videos, as the rest of the render tier deals with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from render_tier.model import ModelAssets, ModelLoadError
from render_tier.model.context_length import text_config
from render_tier.model.files import read_json_object
from render_tier.multimodal.encoding import FloatType
from render_tier.multimodal.families import Replacement, Spelled, family_of, video_form_of
from render_tier.multimodal.features import Features, Payload, features_of
from render_tier.multimodal.item import ImageProcessor, UnsupportedProcessor
from render_tier.multimodal.options import PROCESSOR, OptionRefused, image_options
from render_tier.multimodal.pictures import Pictures, pictures_of
from render_tier.multimodal.placeholders import Range, cut, expand, moved
from render_tier.multimodal.prepared import ImagePreparation, InRuns, Modality, Prepared
from render_tier.multimodal.processors.choice import image_processor
from render_tier.multimodal.processors.request_settings import all_settings_of, settings_of
from render_tier.multimodal.processors.video import VideoProcessor
from render_tier.multimodal.processors.video_choice import video_processor
from render_tier.multimodal.scopes import SCOPES, Kind, over, settings_for
from render_tier.multimodal.videos.opening import VideoOpener
from render_tier.multimodal.videos.options import reading_over, video_options
from render_tier.multimodal.videos.prepared import VideoPreparation

KNOWN_CHARS = 16
"""Of a hash: what a caller says of the images that it has. It gets the whole hash, and looks again."""
UNCHANGED = {"do_rescale": False, "do_normalize": False}
"""Processor settings with which pixels keep their values."""
FLOAT_TYPES: Mapping[str, FloatType] = {"bfloat16": "bfloat16", "float16": "float16"}


@dataclass(frozen=True)
class PromptImage:
    image: Prepared
    name_hash: str | None = None
    """Of the client's name for it."""
    known: frozenset[str] = frozenset()
    """Of what images the caller has the data: the beginnings of hashes of contents."""

    @property
    def mm_hash(self) -> str:
        return self.image.mm_hash if self.name_hash is None else self.name_hash


class PromptTokens(Protocol):
    """A prompt's IDs, looked at if need be."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...


class Vision:
    """Thread-safe."""

    def __init__(
        self,
        preparation: ImagePreparation,
        processor_with: Callable[[Mapping[str, Any]], ImageProcessor],
        videos: VideoPreparation | None = None,
        video_processor_with: Callable[[Mapping[str, Any]], VideoProcessor] | None = None,
        reading: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """``preparation``: of images. ``processor_with``: the model's processor with settings of a request;
        raises UnsupportedProcessor. ``videos``, ``video_processor_with``: None where they are not taken.
        ``reading``: how media are read where a request does not say (`media_io_kwargs`). Raises
        OptionRefused."""
        self.videos = videos
        self._processor_with = processor_with
        self._video_processor_with = video_processor_with
        self._reading = reading or {}
        self.preparation = preparation
        """Where a request says nothing of it."""
        if reading:
            self.preparation = self._prepared_with({}, {})
            self.videos = self._videos_with({}, {}, self.preparation)

    @property
    def marks(self) -> Mapping[Modality, tuple[str, str, Spelled | None]]:
        """Of each kind of media that is taken, what stands for it in a message that reaches the template as
        one string, what a template writes for it, and how where that is no token."""
        family = self.preparation.family
        shown: dict[Modality, tuple[str, str, Spelled | None]] = {
            "image": (family.mark, family.token, family.spelled)
        }
        if self.videos is not None:
            form = self.videos.form
            shown["video"] = form.mark, form.token, form.spelled
        return shown

    @property
    def settings_digest(self) -> bytes:
        """Of all that decides what becomes of images and videos."""
        of_videos = b"" if self.videos is None else self.videos.settings_digest
        return self.preparation.settings_digest + of_videos

    def prepared_with(
        self,
        mm_processor_kwargs: Mapping[str, Any] | None,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None,
    ) -> ImagePreparation:
        """As a request says. Raises OptionRefused."""
        if media_io_kwargs and self.videos is not None:
            media_io_kwargs = {name: said for name, said in media_io_kwargs.items() if name != "video"}
        if not mm_processor_kwargs and not media_io_kwargs:
            return self.preparation
        return self._prepared_with(mm_processor_kwargs or {}, media_io_kwargs or {})

    def _prepared_with(
        self, mm_processor_kwargs: Mapping[str, Any], media_io_kwargs: Mapping[str, Mapping[str, Any]]
    ) -> ImagePreparation:
        usual = self.preparation
        of_images = {**self._reading.get("image", {}), **media_io_kwargs.get("image", {})}
        options = image_options(
            mm_processor_kwargs,
            {**media_io_kwargs, "image": of_images},
            processor=usual.processor,
            most=usual.max_pixels,
            of_videos=() if self.videos is None else settings_of(self.videos.processor),
        )
        with _as_refusal():
            processor = self._processor_with(options.processor)
        return usual.with_options(options, processor)

    def videos_with(
        self,
        mm_processor_kwargs: Mapping[str, Any] | None,
        media_io_kwargs: Mapping[str, Mapping[str, Any]] | None,
        images: ImagePreparation,
    ) -> VideoPreparation | None:
        """As a request says; None where videos are not taken. ``images``: `prepared_with` of the same. Raises
        OptionRefused."""
        if not mm_processor_kwargs and not media_io_kwargs:
            return self.videos
        return self._videos_with(mm_processor_kwargs or {}, media_io_kwargs or {}, images)

    def _videos_with(
        self,
        mm_processor_kwargs: Mapping[str, Any],
        media_io_kwargs: Mapping[str, Mapping[str, Any]],
        images: ImagePreparation,
    ) -> VideoPreparation | None:
        usual = self.videos
        if usual is None or self._video_processor_with is None:
            if (scope := SCOPES["video"]) in mm_processor_kwargs:
                raise OptionRefused(f"{PROCESSOR}.{scope}", "no videos are taken of this model")
            return None
        options = video_options(
            mm_processor_kwargs,
            reading_over(self._reading.get("video", {}), media_io_kwargs.get("video", {})),
            images.background,
            known=settings_of(usual.processor),
            of_images=settings_of(images.processor),
            most=usual.max_pixels,
        )
        with _as_refusal():
            processor = self._video_processor_with(options.processor)
        return usual.with_options(options, processor)

    def expand(
        self, ids: Sequence[int], replacements: Sequence[Replacement]
    ) -> tuple[list[int], list[Range]]:
        """Raises MisplacedImages."""
        video_token = None if self.videos is None else self.videos.form.token_id
        return expand(ids, self.preparation.family, replacements, video_token)

    def cut(
        self, ids: Sequence[int], ranges: Sequence[Range], replacements: Sequence[Replacement], kept: slice
    ) -> tuple[list[int], list[Range]]:
        """As `placeholders.cut`."""
        return cut(ids, ranges, replacements, kept)

    def moved(self, ranges: Sequence[Range], before: Sequence[int], after: Sequence[int]) -> list[Range]:
        """As `placeholders.moved`."""
        return moved(ranges, before, after)

    def given(
        self,
        images: Sequence[PromptImage],
        ranges: Sequence[Range],
        *,
        ids: PromptTokens,
        payload: Payload,
    ) -> Features | Pictures:
        """What an engine is given for the images at ``ranges`` of the prompt."""
        items = [
            replace(item, named_only=each.name_hash is None and item.mm_hash[:KNOWN_CHARS] in each.known)
            for each in images
            for item in each.image.named_items(each.mm_hash)
        ]
        features = features_of(items, ranges, prompt_length=len(ids), payload=payload)
        if not self.preparation.pictured:
            return features
        return pictures_of(features, ids, as_whole=self.preparation.family.is_own_format)


def open_vision(
    assets: ModelAssets,
    encode: Callable[[str], list[int]],
    *,
    dtype: str,
    engine_normalizes: bool,
    in_runs: InRuns,
    processor_kwargs: Mapping[str, Any],
    media_io_kwargs: Mapping[str, Mapping[str, Any]],
    max_pixels: int,
    cache_bytes: int,
    video_opener: VideoOpener | None = None,
) -> Vision | None:
    """None for a model whose images are not taken here. ``dtype``: of pixel values in engines, "auto" for the
    model's own. ``media_io_kwargs``: where a request says nothing else.
    ``engine_normalizes``: whether engines do, where the family can leave it to them.
    ``in_runs``: what they are given of an image whose embeddings are in several runs. ``video_opener``: None
    where videos are not to be taken. Raises ModelLoadError."""
    config = assets.image_config
    family = family_of(config, assets.vocabulary, encode)
    if family is None:
        return None
    for scope in SCOPES.values():
        if not isinstance(processor_kwargs.get(scope, {}), Mapping):
            raise ModelLoadError(f"--mm-processor-kwargs: {scope!r} is no object")
    pictured = family.in_runs and in_runs == "pictures"
    as_bytes = not family.is_own_format and (pictured or (engine_normalizes and family.engine_normalizes))
    own = read_json_object(assets.directory / "preprocessor_config.json") or {}
    whole = read_json_object(assets.directory / "processor_config.json")

    of_videos = read_json_object(assets.directory / "video_preprocessor_config.json")

    def overrides(asked: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
        said = settings_for(over(processor_kwargs, asked), kind)
        return {**said, **(UNCHANGED if as_bytes else {})}

    def processor_with(asked: Mapping[str, Any]) -> ImageProcessor:
        return image_processor(config, own, overrides(asked, "image"), whole)

    def video_processor_with(asked: Mapping[str, Any]) -> VideoProcessor:
        return video_processor(assets.config, (whole, of_videos, own), overrides(asked, "video"))

    in_engines: FloatType = float_type(config) if dtype == "auto" else dtype  # type: ignore[assignment]
    form = None
    if video_opener is not None:
        form = video_form_of(assets.config, assets.vocabulary, encode)
    try:
        preparation = ImagePreparation(
            family,
            processor_with({}),
            model=assets.name,
            float_type=in_engines,
            as_bytes=as_bytes,
            in_runs=in_runs,
            max_pixels=max_pixels,
            cache_bytes=cache_bytes,
        )
        if unknown := media_io_kwargs.keys() - SCOPES:
            raise ModelLoadError(
                f"--media-io-kwargs: {min(unknown)!r} is not taken here; image and video are"
            )
        if form is None or video_opener is None:
            _check_known(processor_kwargs, preparation.processor)
            return Vision(preparation, processor_with, reading=media_io_kwargs)
        videos = VideoPreparation(
            form,
            video_processor_with({}),
            video_opener,
            model=assets.name,
            float_type=in_engines,
            as_bytes=as_bytes,
            cache=preparation.cache,
        )
        _check_known(processor_kwargs, preparation.processor, videos.processor)
        return Vision(preparation, processor_with, videos, video_processor_with, media_io_kwargs)
    except UnsupportedProcessor as error:
        raise ModelLoadError(str(error)) from None
    except OptionRefused as error:
        raise ModelLoadError(f"--media-io-kwargs: {error}") from None


def _check_known(
    processor_kwargs: Mapping[str, Any],
    of_images: ImageProcessor,
    of_videos: VideoProcessor | None = None,
) -> None:
    """Raises ModelLoadError for a name that is no setting of what it counts for; without a processor of
    videos theirs are not looked at."""
    known: dict[Kind, frozenset[str]] = {"image": all_settings_of(of_images)}
    if of_videos is not None:
        known["video"] = all_settings_of(of_videos)
    shared = processor_kwargs.keys() - SCOPES.values()
    given = [(shared, known["image"].union(*known.values()))]
    given += [(processor_kwargs.get(SCOPES[kind], {}).keys(), names) for kind, names in known.items()]
    for said, names in given:
        if unknown := said - names:
            listed = ", ".join(sorted(names)) or "none"
            raise ModelLoadError(
                f"--mm-processor-kwargs: {min(unknown)!r} is not known here; {listed} are for this model"
            )


@contextmanager
def _as_refusal() -> Iterator[None]:
    """Of settings of a request that no processor has."""
    try:
        yield
    except UnsupportedProcessor as error:
        raise OptionRefused(PROCESSOR, str(error)) from None


def float_type(config: Mapping[str, Any]) -> FloatType:
    """What engines run the model in by default: its own type, but bfloat16 for one stored in float32."""
    for part in (config, text_config(dict(config)), config.get("vision_config") or {}):
        for name in ("dtype", "torch_dtype"):
            named = part.get(name)
            if isinstance(named, str):
                return FLOAT_TYPES.get(named.removeprefix("torch."), "bfloat16")
    return "bfloat16"
