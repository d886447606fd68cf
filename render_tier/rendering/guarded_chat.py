"""What ``--escape-user-specials`` needs of a model; models for which it would not be exact are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from render_tier.model import ModelAssets, ModelLoadError
from render_tier.model.engines import TokenEngine
from render_tier.model.text_only import GuardedEngine, load_text_only
from render_tier.protocol.errors import BadRequest
from render_tier.rendering.guarded_encoder import GuardedEncoder, MarkedText
from render_tier.rendering.prompt_cache import PromptCache, cut_marks, cuts_are_independent
from render_tier.rendering.special_guard import SpecialGuard
from render_tier.rendering.template import ChatTemplate

SYSTEM, USER = {"role": "system", "content": "one"}, {"role": "user", "content": "two"}
ANSWER = {"role": "assistant", "content": "three"}
CALL = {"type": "function", "id": "call12345", "function": {"name": "four", "arguments": {"five": 6}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "call12345", "name": "four", "content": "seven"}
TOOL = {"type": "function", "function": {"name": "four", "description": "eight", "parameters": {}}}
CONVERSATIONS: tuple[tuple[list[dict[str, Any]], list[dict[str, Any]] | None], ...] = (
    ([USER], None),
    ([SYSTEM, USER, ANSWER, USER], None),
    ([USER, CALLING, RESULT, ANSWER, USER], [TOOL]),
    ([SYSTEM, USER, CALLING, RESULT], [TOOL]),
)
"""Between them they use every role; a template may refuse some."""


def guarded_encoder(
    assets: ModelAssets, engine: TokenEngine, cache_bytes: int
) -> tuple[GuardedEncoder, PromptCache | None]:
    """Raises ModelLoadError when special tokens cannot be kept apart from the text around them."""
    added = [token for token in assets.tokenizer_json.get("added_tokens") or () if token.get("content")]
    specials = {str(token["content"]): int(token["id"]) for token in added if token.get("special")}
    if not specials or not cuts_are_independent(assets.tokenizer_json):
        raise ModelLoadError(
            "--escape-user-specials: this tokenizer looks across special tokens, or has none"
        )
    unknown = assets.special_tokens.get("unk_token")
    forbidden = frozenset(identifier for text, identifier in specials.items() if text != unknown)
    text_only = load_text_only(assets.directory / "tokenizer.json", assets.added_tokens)
    guarded = GuardedEngine(engine, text_only, forbidden)
    cache = None
    if cache_bytes:
        marks = cut_marks(assets.tokenizer_json, (assets.chat_template, assets.tool_chat_template))
        cache = PromptCache(guarded, [mark for mark in marks if mark not in specials], cache_bytes)
    return GuardedEncoder(SpecialGuard(specials), guarded, cache, assets.tokenizer), cache


def check_template(
    template: ChatTemplate,
    guarded: GuardedEncoder,
    engine: TokenEngine,
    special_tokens: Mapping[str, str | list[str]],
) -> None:
    """Raises ModelLoadError unless the template gives the same IDs with the guard as without, for
    conversations that spell no special token."""
    for conversation, tools in CONVERSATIONS:
        arguments = {"tools": tools, "add_generation_prompt": True}
        try:
            text = template.render(conversation, {**special_tokens, **arguments})
        except BadRequest:
            continue
        mark = guarded.guard.free_mark(conversation, tools)
        own = guarded.guard.marked_values(special_tokens, mark)
        marked = MarkedText(template.render(conversation, {**own, **arguments}, mark), mark)
        if guarded.ids(marked).to_list() != engine.ids(text, add_special_tokens=False):
            raise ModelLoadError(
                "--escape-user-specials: the chat template puts special tokens together out of pieces, so "
                "they cannot be told from text"
            )
