"""Text to token IDs: special tokens, truncation, offsets and the context limit, in vLLM's order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from render_tier.model.engines import ReferenceTokenizer, TokenEngine
from render_tier.protocol.errors import BadRequest
from render_tier.protocol.validation import invalid, summarise
from render_tier.rendering.guarded_encoder import GuardedEncoder, MarkedText
from render_tier.rendering.prompt_cache import PromptCache
from render_tier.rendering.token_ids import PromptIds

Side = Literal["left", "right"]
DEFAULT_SIDE: Side = "left"
"""Generation keeps the end of a prompt that is cut without a named side."""
NOT_UNICODE = "The prompt holds text that is not valid Unicode (a lone surrogate)"
"""Encoders take valid Unicode only; escapes inside tool arguments can still hold a surrogate."""


@dataclass(frozen=True)
class EncodeOptions:
    """``keep``: tokens to keep (``truncate_prompt_tokens``), -1 for as many as fit, None for no truncation.

    ``reserve_output``: whether -1 leaves room for one output token.
    """

    add_special_tokens: bool
    keep: int | None = None
    side: Side | None = None
    offsets: bool = False
    reserve_output: bool = True


@dataclass(frozen=True)
class EncodedPrompt:
    ids: PromptIds
    offsets: list[tuple[int, int]] | None = None

    @property
    def token_ids(self) -> list[int]:
        return self.ids.to_list()


class PromptEncoder:
    """Thread-safe. A long encode releases the interpreter lock unless offsets are asked for."""

    def __init__(
        self,
        tokenizer: ReferenceTokenizer,
        *,
        vocab_size: int,
        max_model_len: int,
        max_chars_per_token: int,
        engine: TokenEngine | None = None,
        cache: PromptCache | None = None,
    ) -> None:
        """``engine`` (by default the tokenizer itself) gives the same IDs as ``tokenizer``, which is asked
        where offsets are; ``cache`` is asked first where no special tokens are added."""
        self._tokenizer = tokenizer
        self._engine = engine or tokenizer
        self._cache = cache
        self._adds_specials = tokenizer.specials > 0
        self._vocab_size = vocab_size
        self._max_model_len = max_model_len
        self._max_chars = max_model_len * max_chars_per_token

    def text(self, text: str, options: EncodeOptions) -> EncodedPrompt:
        """Raises BadRequest when the text cannot be tokenized or does not fit the context."""
        keep = self._checked_keep(options)
        text, skipped = self._cut_text(text, options)
        specials = options.add_special_tokens and self._adds_specials
        cuts_before_specials = specials and keep is not None and options.side is None
        if not (options.offsets or cuts_before_specials):
            return self._fitted(self._ids(text, specials), None, keep, options.side, exact=False)
        room = None if not cuts_before_specials or keep is None else max(keep - self._tokenizer.specials, 0)
        with _faults_of_the_text():
            ids, offsets = self._tokenizer.encoded(
                text, add_special_tokens=specials, keep=room, offsets=options.offsets
            )
        if offsets is not None:
            offsets = [(start + skipped, end + skipped) for start, end in offsets]
        return self._fitted(ids, offsets, keep, options.side, exact=False)

    def marked(self, marked: MarkedText, guarded: GuardedEncoder, options: EncodeOptions) -> EncodedPrompt:
        """As `text`, with special tokens only where they are marked. Raises BadRequest."""
        keep = self._checked_keep(options)
        skipped = 0
        if len(marked.text) > self._max_chars:
            plain = guarded.guard.plain(marked.text, marked.mark)
            text, skipped = self._cut_text(plain, options)
            if len(text) < len(plain):
                cut = guarded.guard.cut(marked.text, marked.mark, skipped, len(text))
                marked = MarkedText(cut, marked.mark)
        specials = options.add_special_tokens and self._adds_specials
        offsets: list[tuple[int, int]] | None = None
        with _faults_of_the_text():
            ids: PromptIds | list[int]
            if options.offsets:
                ids, offsets = guarded.with_offsets(marked)
                offsets = [(start + skipped, end + skipped) for start, end in offsets]
            else:
                ids = guarded.ids(marked)
        if specials:
            ids = ids.to_list() if isinstance(ids, PromptIds) else ids
            first = 0
            if keep is not None and options.side is None:
                first = max(len(ids) - max(keep - self._tokenizer.specials, 0), 0)
            ids = guarded.wrapped(ids[first:])
            offsets = None if offsets is None else guarded.wrapped_offsets(offsets[first:])
        return self._fitted(ids, offsets, keep, options.side, exact=False)

    def plain_ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """IDs of ``text`` with no limit on length (``/tokenize``)."""
        return self._ids(text, add_special_tokens and self._adds_specials).to_list()

    def token_ids(self, token_ids: list[int], options: EncodeOptions) -> EncodedPrompt:
        """IDs that the client sent. Raises BadRequest for an ID outside the vocabulary or too many IDs."""
        self.check_ids(token_ids, "prompt")
        return self._fitted(token_ids, None, self._checked_keep(options), options.side, exact=True)

    def check_ids(self, token_ids: list[int], param: str) -> None:
        """An engine that is handed an ID outside its embedding dies, so none may pass."""
        if not token_ids:
            return
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < self._vocab_size:
                raise invalid(f"Token id {summarise(token_id)} is out of vocabulary", param)

    def kept(self, options: EncodeOptions, count: int) -> slice | None:
        """What truncation leaves of so many tokens; None for all. Raises BadRequest."""
        return _kept(self._checked_keep(options), options.side, count)

    def check_fits(self, count: int, *, exact: bool = True) -> None:
        if count <= self._max_model_len:
            return
        shown = str(count) if exact else f"at least {self._max_model_len + 1}"
        raise invalid(
            f"This model's maximum context length is {self._max_model_len} tokens. However, your prompt "
            f"contains {shown} input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
            count if exact else self._max_model_len + 1,
        )

    def _fitted(
        self,
        ids: PromptIds | list[int],
        offsets: list[tuple[int, int]] | None,
        keep: int | None,
        side: Side | None,
        *,
        exact: bool,
    ) -> EncodedPrompt:
        kept = _kept(keep, side, len(ids))
        if kept is not None:
            ids = (ids.to_list() if isinstance(ids, PromptIds) else ids)[kept]
            offsets = offsets[kept] if offsets is not None else None
        self.check_fits(len(ids), exact=exact)
        if not len(ids):
            raise BadRequest("No token_ids rendered")
        return EncodedPrompt(ids if isinstance(ids, PromptIds) else PromptIds.of(ids), offsets)

    def _checked_keep(self, options: EncodeOptions) -> int | None:
        keep = options.keep
        if keep is None:
            return None
        if keep > self._max_model_len:
            raise invalid(
                f"truncate_prompt_tokens={summarise(keep)} cannot be greater than max_model_len = "
                f"{self._max_model_len}. Please request a smaller truncation size.",
                "truncate_prompt_tokens",
                keep,
            )
        if keep < 0:
            return self._max_model_len - 1 if options.reserve_output else self._max_model_len
        return keep

    def check_chars(self, count: int) -> None:
        """Raises BadRequest when no prompt of the context can have so many characters."""
        if count > self._max_chars:
            raise self._too_many_chars(count)

    def _too_many_chars(self, count: int) -> BadRequest:
        return invalid(
            f"This model's maximum context length is {self._max_model_len} tokens. However, your prompt "
            f"contains {count} characters (more than {self._max_chars} characters, which is the "
            f"upper bound for {self._max_model_len} input tokens). Please reduce the length of the input "
            "prompt.",
            "input_text",
            count,
        )

    def _cut_text(self, text: str, options: EncodeOptions) -> tuple[str, int]:
        """A text longer than any prompt of the context can be is refused, or cut on the named side, before it
        is tokenized; also returns how many characters were cut from its start."""
        if len(text) <= self._max_chars:
            return text, 0
        if options.keep is None:
            raise self._too_many_chars(len(text))
        if options.side == "left":
            return text[-self._max_chars :], len(text) - self._max_chars
        if options.side == "right":
            return text[: self._max_chars], 0
        return text, 0

    def _ids(self, text: str, specials: bool) -> PromptIds:
        with _faults_of_the_text():
            if self._cache is not None and not specials:
                return self._cache.ids(text)
            return PromptIds.of(self._engine.ids(text, add_special_tokens=specials))


def _kept(keep: int | None, side: Side | None, count: int) -> slice | None:
    if keep is None or keep >= count:
        return None
    return slice(count - keep, None) if (side or DEFAULT_SIDE) == "left" else slice(0, keep)


@contextmanager
def _faults_of_the_text() -> Iterator[None]:
    """What a tokenizer raises for a text that it cannot take, as BadRequest."""
    try:
        yield
    except (TypeError, UnicodeError):
        raise BadRequest(NOT_UNICODE) from None
    except ValueError as error:  # mistral-common's, for a run that is too long for it
        raise BadRequest(str(error)) from None
