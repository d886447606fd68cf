"""The model in service: loaded once, warmed up, then shared by every request of the process."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import structlog

from render_tier.derendering import Derenderer, DerenderSettings
from render_tier.model import ModelAssets, ModelLoadError, load_assets
from render_tier.model.engines import EngineSlot, FastEngine, FastEngineUnavailable, ReferenceEngine
from render_tier.model.parity import first_difference, probe_texts
from render_tier.model.parser_choice import AUTO
from render_tier.protocol.chat import ChatCompletionRequest
from render_tier.protocol.completions import CompletionRequest
from render_tier.protocol.errors import ApiError
from render_tier.rendering.renderer import Renderer
from render_tier.rendering.settings import RenderSettings
from render_tier.server.memory import return_freed_memory
from render_tier.settings import Settings

if TYPE_CHECKING:  # loaded only with a model that takes images
    from render_tier.multimodal.videos.opening import VideoOpener
    from render_tier.server.served_images import ServedImages

log = structlog.get_logger()
Fallback = Literal["unavailable", "parity"]
PROBE_TEXTS = 500
PROBE_VOCABULARY = 2000
"""Ordinary tokens from which probe texts are drawn."""


class Service:
    def __init__(self, settings: Settings, assets: ModelAssets) -> None:
        """Compiles the templates. Raises ApiError when one of them does not compile, ModelLoadError for
        images that cannot be processed."""
        settings = _with_parsers(settings, assets)
        engine = EngineSlot(assets.tokenizer)
        self.images = _images(settings, assets, engine)
        """None for a model whose images are not taken."""
        if self.images is not None:
            assets = _with_image_settings(assets, self.images)
        self.assets = assets
        vision = None if self.images is None else self.images.vision
        self.renderer = Renderer(assets, _render_settings(settings), engine=engine, vision=vision)
        self.derenderer = Derenderer(assets, _derender_settings(settings))
        self._wants_fast_engine = settings.tokenizer_engine == "auto" and assets.mistral is None
        self.fallback: Fallback | None = None
        """Why the fast engine is not used, when it was wanted and tried."""

    @classmethod
    def load(cls, settings: Settings) -> Service:
        """Raises ModelLoadError. A process may fork afterwards."""
        assets = load_assets(
            settings.model,
            served_names=settings.served_model_name,
            max_model_len=settings.max_model_len,
            chat_template=settings.chat_template,
            generation_config=settings.generation_config,
            override_generation_config=settings.override_generation_config,
            revision=settings.revision,
            reasoning_parser=settings.reasoning_parser,
            tool_parser=_render_settings(settings).tool_parser,
            parser_plugins=settings.parser_plugin,
            tokenizer_mode=settings.tokenizer_mode,
            config_format=settings.config_format,
        )
        if assets.tool_parser is None and settings.enable_auto_tool_choice:
            raise ModelLoadError(
                "--tool-call-parser auto: nothing says how this model writes calls; name a parser"
            )
        return cls(settings, assets)

    @property
    def awaits_fast_engine(self) -> bool:
        """Whether there is a faster engine to try than the one in use."""
        engine = self.renderer.engine
        return self._wants_fast_engine and self.fallback is None and engine.name == ReferenceEngine.name

    def adopt_fast_engine(self) -> None:
        """Load the fast engine and use it if it gives the reference's IDs for the probe texts. Takes seconds
        and half as much memory again as the model; requests may be served meanwhile, and a process may fork
        afterwards."""
        slot, assets = self.renderer.engine, self.assets
        try:
            fast = FastEngine.load(assets.directory / "tokenizer.json", assets.added_tokens)
        except FastEngineUnavailable as error:
            self._fall_back("unavailable", str(error))
            return
        added = [str(token["content"]) for token in assets.tokenizer_json["added_tokens"]]
        step = max(assets.vocabulary.size // PROBE_VOCABULARY, 1)
        sample = [assets.vocabulary.text([token]) for token in range(0, assets.vocabulary.size, step)]
        difference = first_difference(slot.reference, fast, probe_texts(added, sample, PROBE_TEXTS))
        if difference is not None:
            self._fall_back("parity", f"IDs of {difference[:200]!r} differ")
            return
        slot.adopt(fast)
        return_freed_memory()
        log.info("tokenizer_engine", engine=fast.name)

    def _fall_back(self, kind: Fallback, reason: str) -> None:
        self.fallback = kind
        log.warning("tokenizer_engine", engine=ReferenceEngine.name, fallback=kind, reason=reason)

    def warm_up(self) -> None:
        """Pay for first-use costs (regexes, caches) before the first client does.

        A template that refuses the probe is no reason not to serve.
        """
        try:
            self.renderer.completions(CompletionRequest.parse({"prompt": "warm up", "max_tokens": 1}))
            if self.renderer.writes_chats:
                probe = {"messages": [{"role": "user", "content": "warm up"}], "max_tokens": 1}
                self.renderer.chat(ChatCompletionRequest.parse(probe))
        except ApiError as error:
            log.warning("warm_up_refused", reason=error.message)
        return_freed_memory()


def _images(settings: Settings, assets: ModelAssets, engine: EngineSlot) -> ServedImages | None:
    """Raises ModelLoadError."""
    if not isinstance(assets.image_config.get("vision_config"), dict):
        return None
    if settings.limit_mm_per_prompt.get("image") == 0:
        return None
    try:
        from render_tier.multimodal.vision import open_vision
        from render_tier.server.served_images import served_images
    except ImportError as error:
        log.warning("images_refused", reason=f"the extra multimodal is not installed: {error}")
        return None
    try:
        vision = open_vision(
            assets,
            lambda text: engine.ids(text, add_special_tokens=False),
            dtype=settings.dtype,
            engine_normalizes=settings.mm_device_do_normalize,
            in_runs=settings.mm_images_in_runs,
            processor_kwargs=settings.mm_processor_kwargs,
            media_io_kwargs=settings.media_io_kwargs,
            max_pixels=settings.max_image_pixels,
            cache_bytes=settings.image_cache_bytes,
            video_opener=_video_opener(settings),
        )
    except ModelLoadError as error:
        hint = (
            """--limit-mm-per-prompt '{"image": 0}' serves the model without images, "video" without videos"""
        )
        raise ModelLoadError(f"{error}; {hint}") from None
    if vision is None:
        return None
    if vision.preparation.refusal is not None:
        log.warning("images_refused", reason=vision.preparation.refusal)
    return served_images(vision, settings)


def _video_opener(settings: Settings) -> VideoOpener | None:
    if settings.limit_mm_per_prompt.get("video") == 0:
        return None
    from render_tier.multimodal.videos.opening import VideoOpener, VideoRules

    return VideoOpener(
        VideoRules(
            max_frame_pixels=settings.max_image_pixels,
            max_pixels=settings.max_video_pixels,
            decoder_seconds=settings.video_decoder_seconds,
            decoder_memory_bytes=settings.video_decoder_memory_bytes,
        )
    )


def _with_image_settings(assets: ModelAssets, images: ServedImages) -> ModelAssets:
    """Members of a deployment must agree on what becomes of an image, too."""
    digest = hashlib.blake2b(assets.fingerprint.encode(), digest_size=16)
    digest.update(images.vision.settings_digest)
    return replace(assets, fingerprint=digest.hexdigest())


def _with_parsers(settings: Settings, assets: ModelAssets) -> Settings:
    """The settings with the parsers that "auto" stands for."""
    resolved = {"reasoning_parser": assets.reasoning_parser, "tool_call_parser": assets.tool_parser}
    return settings.model_copy(
        update={name: parser for name, parser in resolved.items() if getattr(settings, name) == AUTO}
    )


def _render_settings(settings: Settings) -> RenderSettings:
    return RenderSettings(
        reasoning_parser=settings.reasoning_parser,
        tool_call_parser=settings.tool_call_parser,
        enable_auto_tool_choice=settings.enable_auto_tool_choice,
        exclude_tools_when_tool_choice_none=settings.exclude_tools_when_tool_choice_none,
        tool_strict_level=settings.tool_strict_level,
        chat_template_content_format=settings.chat_template_content_format,
        trust_request_mm_kwargs=settings.trust_request_mm_kwargs,
        trust_request_chat_template=settings.trust_request_chat_template,
        default_chat_template_kwargs=settings.default_chat_template_kwargs,
        system_start_date=settings.system_start_date,
        escape_user_specials=settings.escape_user_specials,
        strict_history=settings.strict_history,
        max_logprobs=settings.max_logprobs,
        max_stop_strings=settings.max_stop_strings,
        max_choices=settings.max_choices,
        max_prompts=settings.max_prompts,
        max_template_seconds=settings.max_template_seconds,
        max_template_chars=settings.max_template_chars,
        continuation_renders=settings.continuation_renders,
        prompt_cache_bytes=settings.prompt_cache_bytes,
    )


def _derender_settings(settings: Settings) -> DerenderSettings:
    return DerenderSettings(
        reasoning_parser=settings.reasoning_parser,
        tool_parser=_render_settings(settings).tool_parser,
        default_chat_template_kwargs=settings.default_chat_template_kwargs,
        tool_choice_none=settings.tool_choice_none,
        stop_scope=settings.stop_scope,
        max_logprobs=settings.max_logprobs,
        max_choices=settings.max_choices,
        max_stop_strings=settings.max_stop_strings,
        max_prompts=settings.max_prompts,
        context_cache_entries=settings.context_cache_entries,
        context_cache_bytes=settings.context_cache_bytes,
        stream_cache_entries=settings.stream_cache_entries,
        stream_cache_bytes=settings.stream_cache_bytes,
        stream_cache_seconds=settings.stream_cache_seconds,
        max_state_bytes=settings.max_state_bytes,
        state_keys=tuple(key.encode() for key in settings.state_key),
    )
