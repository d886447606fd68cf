"""The contexts that this process knows: made from requests, kept by digest within bounds, asked for when
unknown.

A context may travel with a call (the request and the prompt's IDs), be named by its digest, or be named by
the state of a stream. Whatever travels is compared with what the state names.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from msgspec import Raw

from render_tier.derendering.context import Context, ContextResolver, Kind
from render_tier.derendering.served import ServedModel
from render_tier.derendering.settings import DerenderSettings
from render_tier.protocol.derender import given
from render_tier.protocol.errors import BadRequest, ContextRequired


class ContextCache:
    """Contexts by digest, least recently used first out. Bounded by ``entries`` and by the ``max_bytes`` of
    the requests that they were made from. Safe for threads."""

    def __init__(self, entries: int, max_bytes: int) -> None:
        self._entries = entries
        self._max_bytes = max_bytes
        self._contexts: OrderedDict[bytes, Context] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._contexts)

    def get(self, digest: bytes) -> Context | None:
        with self._lock:
            context = self._contexts.get(digest)
            if context is not None:
                self._contexts.move_to_end(digest)
            return context

    def put(self, context: Context) -> None:
        with self._lock:
            old = self._contexts.pop(context.digest, None)
            self.bytes += context.size - (old.size if old is not None else 0)
            self._contexts[context.digest] = context
            while len(self._contexts) > self._entries or self.bytes > self._max_bytes:
                _digest, dropped = self._contexts.popitem(last=False)
                self.bytes -= dropped.size


class Contexts:
    """Of one model and configuration."""

    def __init__(self, model: ServedModel, settings: DerenderSettings) -> None:
        self._resolver = ContextResolver(model, settings)
        self.cache = ContextCache(settings.context_cache_entries, settings.context_cache_bytes)

    @property
    def has_parser(self) -> bool:
        return self._resolver.has_parser

    def of_request(self, kind: Kind, request: Raw, prompt: Raw, named: str | None) -> Context:
        """The context of a call without state of ours. Raises ContextRequired for a name not known."""
        if named is not None and not given(request):
            context = self.cache.get(_digest(named))
            if context is None:
                raise _context_required()
            return _of_kind(kind, context)
        raw_request, raw_prompt = _bytes(request), _bytes(prompt)
        return self._resolved(
            kind, self._resolver.digest(kind, raw_request, raw_prompt), raw_request, raw_prompt
        )

    def of_state(self, kind: Kind, digest: bytes, request: Raw, prompt: Raw, named: str | None) -> Context:
        """The context that a state belongs to. What the call sends beside the state must be the same
        request; a part left out is not compared."""
        if named is not None and _digest(named) != digest:
            raise _other_request()
        whole = given(request) and given(prompt)
        if not whole:
            known = self.cache.get(digest)
            if known is not None:
                return _of_kind(kind, known)
        raw_request, raw_prompt = _bytes(request), _bytes(prompt)
        if self._resolver.digest(kind, raw_request, raw_prompt) != digest:
            raise _other_request() if whole else _context_required()
        return self._resolved(kind, digest, raw_request, raw_prompt)

    def _resolved(self, kind: Kind, digest: bytes, request: bytes, prompt: bytes) -> Context:
        context = self.cache.get(digest)
        if context is None:
            context = self._resolver.resolve(kind, digest, request, prompt)
            self.cache.put(context)
        return context


def _bytes(raw: Raw) -> bytes:
    return bytes(raw) if given(raw) else b""


def _digest(named: str) -> bytes:
    try:
        return bytes.fromhex(named)
    except ValueError:
        raise BadRequest("context is not a digest", param="context") from None


def _of_kind(kind: Kind, context: Context) -> Context:
    if context.kind != kind:
        raise _other_request()
    return context


def _other_request() -> BadRequest:
    return BadRequest("invalid stream_state: it belongs to another request", param="stream_state")


def _context_required() -> ContextRequired:
    return ContextRequired(
        "the context of this stream is not known here: send the request and prompt_token_ids with the same "
        "stream_state",
        param="context",
    )
