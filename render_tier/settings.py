"""Every setting of the render tier in one frozen object; unknown keys are refused.

The same names are command-line flags (``--max-model-len``) and keys of a ``--config`` TOML file
(``max_model_len``); ``deploy/render-tier.example.toml`` lists them all.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

from render_tier.core.formats import REASONING_NAMES, TOOL_NAMES
from render_tier.core.machine import StopScope
from render_tier.media_limits import MediaLimits

MIB = 1024 * 1024
SECRET = "***"


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), use_attribute_docstrings=True
    )

    model: str
    """Directory or hub name."""
    served_model_name: tuple[str, ...] = ()
    """Names that clients may use; the model as given when none."""
    revision: str | None = None
    """Revision of a hub model."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Positions of prompt and output together; from the model's configuration when not given."""
    generation_config: str = "auto"
    """Sampling defaults: "auto" (the model's own), "vllm" (none), or a directory."""
    override_generation_config: dict[str, Any] = {}
    """Values laid over the generation config (JSON)."""

    chat_template: str | None = None
    """A file, or the template itself."""
    chat_template_content_format: Literal["auto", "string", "openai"] = "auto"
    """How message content reaches the template."""
    default_chat_template_kwargs: dict[str, Any] = {}
    """Template variables that requests may override (JSON)."""
    trust_request_chat_template: bool = False
    """Let requests bring their own template."""
    reasoning_parser: str | None = None
    """How the model writes its reasoning; "auto" finds out from the model's files."""
    tool_call_parser: str | None = None
    """How the model writes tool calls; "auto" finds out from the model's files."""
    parser_plugin: tuple[str, ...] = ()
    """Files with parsers of your own: .py, or declarative .toml or .json (docs/parsers.md)."""
    enable_auto_tool_choice: bool = False
    """Let the model decide on tool calls; needs a tool call parser."""
    exclude_tools_when_tool_choice_none: bool = False
    """Leave tools out of the prompt when tool_choice is "none"."""
    tool_strict_level: Literal["auto", "function", "parameter"] = "auto"
    """What of a tool call engines are told to enforce under tool_choice "auto"."""
    system_start_date: str | None = Field(default=None, pattern=r"^\d{4}-\d{2}-\d{2}$")
    """The date that gpt-oss is told; today's, in local time, when not given."""
    escape_user_specials: bool = False
    """Encode the spelling of special tokens in messages, tools and template arguments as text."""
    strict_history: bool = False
    """Refuse malformed tool arguments in the history instead of reading them as {}."""
    tokenizer_mode: Literal["auto", "hf", "mistral"] = "auto"
    """Which tokenizer to read: tokenizer.json ("hf") or a file for mistral-common ("mistral"); "auto" takes
    Mistral's where the repository has Mistral's own layout."""
    config_format: Literal["auto", "hf", "mistral"] = "auto"
    """Which file engines load a model by that takes images: config.json ("hf"), or params.json in Mistral's
    own format ("mistral"); "auto" is the latter where there is one and a tokenizer of Mistral's is in use."""
    tokenizer_engine: Literal["auto", "tokenizers"] = "auto"
    """What encodes prompts: "auto" is the fast engine once it is loaded and gives the same IDs."""
    continuation_renders: int = Field(default=24, ge=0)
    """Renders that a request whose continuation is refused may cost, to find the message that differs."""
    prompt_cache_bytes: int = Field(default=64 * MIB, ge=0)
    """Memory per process for token IDs of parts of earlier prompts; 0 for none."""
    max_logprobs: int = Field(default=20, ge=-1)
    """Most logprobs per token; -1 for no limit."""
    tool_choice_none: Literal["keep", "drop"] = "keep"
    """What becomes of a call that the model writes although tool_choice is "none": text, or nothing."""
    stop_scope: StopScope = "all"
    """Where stop strings are looked for: in reasoning too, or in content only."""
    state_key: tuple[str, ...] = ()
    """Secrets against forged states of streams, the same on every replica: the first signs, all are
    accepted. States can be forged where there is none."""
    context_cache_entries: int = Field(default=4096, ge=0)
    """Requests whose derender context is kept per process."""
    context_cache_bytes: int = Field(default=64 * MIB, ge=0)
    """Size of those requests together."""
    stream_cache_entries: int = Field(default=4096, ge=0)
    """Streams kept per process between two chunks, so that their state need not be restored; 0 for none."""
    stream_cache_bytes: int = Field(default=64 * MIB, ge=0)
    """Size of those streams together."""
    stream_cache_seconds: float = Field(default=60.0, gt=0)
    """How long such a stream is kept for its next chunk."""
    max_state_bytes: int = Field(default=MIB, ge=1024)
    """Longest state of a stream that a client may send."""

    limit_mm_per_prompt: MediaLimits = {}
    """Most images and videos of a prompt, as {"image": 8, "video": {"count": 1}} (JSON); 999 when not given.
    0 serves the model without. Of "audio" none is taken, whatever is said. The sizes that engines measure
    their memory by are read over."""
    mm_processor_kwargs: dict[str, Any] = {}
    """Values laid over those of the model's processors, as {"max_pixels": 1003520} (JSON)."""
    media_io_kwargs: dict[str, dict[str, Any]] = {}
    """How media are read, as {"image": {"rgba_background_color": [0, 0, 0]}, "video": {"num_frames": 40}}
    (JSON)."""
    trust_request_mm_kwargs: bool = False
    """Whether requests may say how their media are processed (`mm_processor_kwargs`) and read
    (`media_io_kwargs`)."""
    mm_device_do_normalize: bool = True
    """Whether engines scale and normalize pixels themselves, as theirs is set; only some models leave it to
    them."""
    mm_images_in_runs: Literal["refused", "masks", "pictures"] = "pictures"
    """What engines are given of images that are several runs of embeddings (Pixtral, Mistral 3): pictures,
    which they process themselves; or tensors and masks, for those that read `is_embed` in `mm_placeholders`,
    which vLLM 0.32 does not."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """The engines' type of pixel values; "auto" is the model's own, or bfloat16 for one stored in float32."""
    allowed_local_media_path: str | None = None
    """Directory below which clients may name image files; none when not given."""
    allowed_media_domains: tuple[str, ...] = ()
    """The only hosts from which images are fetched; any public one when none."""
    allowed_media_networks: tuple[str, ...] = ()
    """Networks from which images may be fetched although they are not public, like 10.2.0.0/16."""
    image_fetch_seconds: float = Field(default=5.0, gt=0)
    """How long fetching an image may take."""
    max_image_redirects: int = Field(default=5, ge=0)
    """Most redirects on the way to an image."""
    max_image_bytes: int = Field(default=16 * MIB, ge=1024)
    """Largest file of an image."""
    max_image_pixels: int = Field(default=64 * MIB, ge=1, le=178_956_970)
    """Most pixels of an image."""
    image_file_memory_bytes: int = Field(default=512 * MIB, ge=MIB)
    """Memory per process for files of images in progress; requests wait for each other."""
    image_item_memory_bytes: int = Field(default=1024 * MIB, ge=MIB)
    """Memory per process for processed images of requests in progress, and for their places in replies."""
    image_cache_bytes: int = Field(default=256 * MIB, ge=0)
    """Memory per process for processed images that may be seen again; 0 for none."""
    image_names: int = Field(default=16384, ge=0)
    """Clients' names (`uuid`) of images that are known per process."""
    image_workers: int = Field(default=1, ge=1)
    """Threads per process that decode and process images."""
    max_video_bytes: int = Field(default=64 * MIB, ge=1024)
    """Largest file of a video, or list of its frames."""
    max_video_pixels: int = Field(default=256 * MIB, ge=1)
    """Most pixels of all frames that are taken of a video; one frame has as many as an image at most."""
    video_fetch_seconds: float = Field(default=30.0, gt=0)
    """How long fetching a video may take."""
    video_decoder_seconds: float = Field(default=60.0, gt=0)
    """How long a video's file may be waited for that is read by a process of its own, which is then ended."""
    video_decoder_memory_bytes: int = Field(default=4096 * MIB, ge=512 * MIB)
    """Address space of such a process."""
    video_workers: int = Field(default=1, ge=1)
    """Threads per process that decode and process videos."""

    host: str = "0.0.0.0"
    """Address to listen on."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 for any free one."""
    uds: str | None = None
    """Unix socket to listen on instead."""
    ssl_certfile: str | None = None
    """Certificate with its chain (PEM); TLS is spoken where it is given."""
    ssl_keyfile: str | None = None
    """The certificate's key (PEM)."""
    ssl_ca_certs: str | None = None
    """Authorities (PEM) of which clients must then show a certificate."""
    workers: int = Field(default=1, ge=1)
    """Processes."""
    renderer_num_workers: int = Field(default=1, ge=1)
    """Threads per process for long renders, and as many again for long derenders."""
    api_key: tuple[str, ...] = ()
    """Bearer keys that clients must send to /v1 paths."""
    enable_request_id_headers: bool = False
    """Answer with X-Request-Id."""
    disable_fastapi_docs: bool = False
    """Do not serve /docs, /redoc and /openapi.json."""
    enable_tokenizer_info_endpoint: bool = False
    """Serve /tokenizer_info, which shows the chat template."""
    root_path: str = ""
    """Prefix under which a proxy serves this API."""
    otlp_traces_endpoint: str | None = None
    """Where OpenTelemetry traces are sent, like http://collector:4318/v1/traces; needs the extra otel."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least important log line to write."""
    log_format: Literal["auto", "json", "console"] = "auto"
    """Form of log lines; "auto" is console on a terminal, else json."""

    max_header_bytes: int = Field(default=64 * 1024, ge=1024)
    """Largest line and headers of a request together."""
    header_timeout: float = Field(default=20.0, gt=0)
    """Seconds in which they must have arrived."""
    max_body_bytes: int = Field(default=32 * MIB, ge=1024)
    """Largest request body."""
    body_timeout: float = Field(default=30.0, gt=0)
    """Seconds in which a request body must have arrived."""
    send_timeout: float = Field(default=60.0, gt=0)
    """Seconds that a client may take to read a reply, or each image of one, before it is cut off."""
    inline_body_bytes: int = Field(default=4096, ge=0)
    """Smaller requests are answered on the event loop: a thread costs more than they do."""
    inline_chunk_bytes: int = Field(default=16384, ge=0)
    """The same for derender's calls with one chunk: most of a body is a request that is known already."""
    inline_render_bytes: int = Field(default=49152, ge=0)
    """The same for renders while nothing streams and no other is under way, with the fast tokenizer."""
    compression_min_bytes: int = Field(default=0, ge=0)
    """Size from which replies are compressed for clients that accept zstd or gzip; 0 for never."""
    compression_level: int = Field(default=1, ge=1, le=9)
    """How hard replies are compressed."""
    max_queue: int = Field(default=256, ge=0)
    """Long requests that may wait for a thread, per kind; more are refused with 503."""
    max_queue_seconds: float = Field(default=10.0, gt=0)
    """How long such a request may wait; one that will, or did, wait longer is refused with 503."""
    max_concurrency: int = Field(default=1024, ge=1)
    """Requests in progress per process; more are refused with 503."""
    shutdown_timeout: int = Field(default=30, ge=1)
    """Seconds that requests in progress get when the server is told to stop."""
    keep_alive_timeout: int = Field(default=75, ge=1)
    """Seconds for which an idle connection is kept; longer than client pools keep theirs."""

    max_sessions: int = Field(default=1024, ge=0)
    """WebSocket sessions per process; 0 for none."""
    max_session_streams: int = Field(default=16384, ge=1)
    """Streams that all sessions of a process hold together."""
    max_session_bytes: int = Field(default=256 * MIB, ge=1)
    """What those streams may take, about."""
    max_session_frames: int = Field(default=4096, ge=1)
    """Frames of one message of a session."""
    session_idle_seconds: float = Field(default=300.0, gt=0)
    """How long a session or one of its streams may rest."""
    session_snapshot_tokens: int = Field(default=64, ge=1)
    """Tokens of a stream between two snapshots."""
    session_inline_tokens: int = Field(default=32, ge=0)
    """What of a session takes longer than reading about so many tokens, as the opening of a stream with a
    long request, is done in a thread."""
    session_turn_tokens: int = Field(default=8, ge=1)
    """About how many tokens of a session's message are read at a stretch while others wait for their turn."""
    session_drain_seconds: float = Field(default=10.0, ge=0)
    """How long streams get to move elsewhere when the server is told to stop."""

    max_stop_strings: int = Field(default=4, ge=1)
    """Most stop strings of a request."""
    max_messages: int = Field(default=65536, ge=1)
    """Most messages, or items of input, of a request."""
    max_tools: int = Field(default=4096, ge=1)
    """Most tools of a request."""
    max_choices: int = Field(default=16384, ge=1)
    """Largest n of a request."""
    max_prompts: int = Field(default=1024, ge=1)
    """Most prompts of a completions request."""
    max_template_seconds: float = Field(default=10.0, gt=0)
    """CPU time that a chat template may take."""
    max_template_chars: int = Field(default=32 * MIB, ge=1)
    """Longest text that a chat template may build."""

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if not self.parser_plugin:  # else the names are known once the plugins are loaded
            if self.reasoning_parser not in (None, "auto", *REASONING_NAMES):
                valid = ", ".join(("auto", *REASONING_NAMES))
                raise ValueError(f"unknown reasoning_parser {self.reasoning_parser!r}; valid names: {valid}")
            if self.tool_call_parser not in (None, "auto", *TOOL_NAMES):
                valid = ", ".join(("auto", *TOOL_NAMES))
                raise ValueError(f"unknown tool_call_parser {self.tool_call_parser!r}; valid names: {valid}")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("ssl_certfile and ssl_keyfile go together")
        if self.ssl_ca_certs is not None and self.ssl_certfile is None:
            raise ValueError("ssl_ca_certs needs ssl_certfile and ssl_keyfile")
        if not all(self.state_key):
            raise ValueError("state_key cannot be empty")
        if self.enable_auto_tool_choice and self.tool_call_parser is None:
            raise ValueError("enable_auto_tool_choice requires tool_call_parser")
        return self

    def shown(self) -> dict[str, Any]:
        """Every value, secrets redacted."""
        values = self.model_dump()
        values["api_key"] = [SECRET] * len(self.api_key)
        values["state_key"] = [SECRET] * len(self.state_key)
        return values

    def digest(self) -> str:
        """Short hash of the values, secrets redacted: equal on replicas that are configured alike."""
        encoded = msgspec.json.encode(self.shown(), order="sorted")
        return hashlib.blake2b(encoded, digest_size=6).hexdigest()
