"""What a key changes about the requests that are made with it.

Its tenant has a cache of its own: engines share prefixes only between prompts of equal ``cache_salt``, and
the salt is a keyed hash of the tenant, joined with the client's own salt. A tenant can neither write
another's salt nor see from cached tokens or from timing what others have asked. Everything that is remembered
of prompts here hashes the salt with them, and session ids and the names of images are kept apart in the same
way.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from orchestrator.core.keys import Grant
from orchestrator.core.legs import RenderedPrompt, with_media_named
from render_tier.protocol.errors import ApiError, BadRequest, NotFound

OUTPUT_LIMITS: Final = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
"""How the APIs call what bounds the output."""

STEERING_HEADERS: Final = frozenset({"x-vllm-priority", "x-data-parallel-rank"})
"""Go to engines only from clients that share them with nobody: they place one client's work before or beside
that of others."""


class Tenancy:
    """``secret``: bytes that no client knows, the same on every orchestrator in front of the same engines."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def salt(self, tenant: str, own: str | None) -> str:
        """64 hex digits."""
        return self._hash(b"cache salt", tenant, own)

    def session(self, tenant: str, session: str) -> str:
        return self._hash(b"session", tenant, session)

    def media(self, tenant: str, own: str | None, name: str) -> str:
        return self._hash(b"media", tenant, own, name)

    def _hash(self, use: bytes, *parts: str | None) -> str:
        # As JSON no two lists of parts read alike.
        return hmac.digest(self._secret, use + msgspec.json.encode(parts), "sha256").hex()


@dataclass(frozen=True, slots=True)
class Access:
    grant: Grant
    tenancy: Tenancy

    def check(self, fields: Mapping[str, Any]) -> None:
        """``fields`` of a client's body: ``model`` and what of ``OUTPUT_LIMITS`` is there. Raises
        ``ApiError``."""
        grant, model = self.grant, fields.get("model")
        if grant.models is not None:
            if model is None:
                raise BadRequest("This API key is for certain models: name one.", param="model")
            if not isinstance(model, str):
                raise BadRequest("model must be a string.", param="model")
            if model not in grant.models:
                raise unknown_model(model)
        if grant.max_tokens is not None:
            for name in OUTPUT_LIMITS:
                asked = fields.get(name)
                if isinstance(asked, int | float) and asked > grant.max_tokens:
                    raise BadRequest(f"{name} is at most {grant.max_tokens} with this API key", param=name)

    def granted(self, prompt: RenderedPrompt) -> RenderedPrompt:
        """``prompt`` as engines may see it: under the tenant's salt, its media under names of the tenant's
        own (a client may name them), and not longer than the key allows."""
        given = prompt.fields.get("cache_salt")
        own = None if given is None else msgspec.json.decode(given, type=str | None)
        salt = self.tenancy.salt(self.grant.tenant, own)
        prompt = with_media_named(prompt, lambda name: self.tenancy.media(self.grant.tenant, own, name))
        fields = {name: raw for name, raw in prompt.fields.items() if name != "priority"}
        fields["cache_salt"] = msgspec.Raw(msgspec.json.encode(salt))
        sampling, most = prompt.sampling, self.grant.max_tokens
        if most is not None:
            sampling = {**sampling, "max_tokens": min(prompt.max_tokens, most)}
        return replace(prompt, fields=fields, sampling=sampling)

    def session(self, session: str | None) -> str | None:
        return None if session is None else self.tenancy.session(self.grant.tenant, session)

    def forwarded(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Of a client's headers that hops get."""
        kept = {name: value for name, value in headers.items() if name not in STEERING_HEADERS}
        if "x-session-id" in kept:
            kept["x-session-id"] = self.tenancy.session(self.grant.tenant, kept["x-session-id"])
        return kept

    def told(self, error: ApiError, model: str | None) -> ApiError:
        """``error`` as the client may see it: who does not serve ``model`` may say what it serves instead."""
        about_models = error.status == 404 and error.param == "model" and self.grant.models is not None
        return unknown_model(model or "") if about_models else error

    def sees(self, model: str) -> bool:
        return self.grant.models is None or model in self.grant.models


def unknown_model(name: str) -> NotFound:
    """The same for a model that is not there and for one that is not for this client."""
    return NotFound(f"The model {name[:200]!r} does not exist.", param="model")
