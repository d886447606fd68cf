"""Who asks: the keys that are configured, what each has under way, and the secret behind the tenants' salts.

One of these is made before the workers of a server are forked, so that they agree on a random secret. Keys of
a file are read again while it runs, so that one can be given or taken without a restart.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
from pydantic import ValidationError

from orchestrator.core.access import Access, Tenancy
from orchestrator.core.credentials import Ambiguous, Headers, shown_key
from orchestrator.core.keys import Grant, Keyring
from orchestrator.security_settings import ApiKey, Auth, KeyFile
from orchestrator.server.accounts import Account, account_of
from orchestrator.settings import ConfigError, read_config
from render_tier.protocol.errors import ApiError

log = structlog.get_logger(__name__)


class InvalidKey(ApiError):
    """No key, or none of ours: which of the two, and why, is not told."""

    status = 401
    type = "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("This needs a valid API key, as Authorization: Bearer or as x-api-key.")

    def encode(self) -> bytes:
        """With OpenAI's code, by which clients know it, instead of the status."""
        error = msgspec.structs.asdict(self.body().error) | {"code": "invalid_api_key"}
        return msgspec.json.encode({"error": error})


class TooMany(ApiError):
    """``cause`` is what the metric counts it by."""

    status = 429
    type = "RateLimitError"

    def __init__(self, message: str, cause: str, retry_after: int) -> None:
        super().__init__(message)
        self.cause = cause
        self.retry_after = retry_after


def configured_keys(auth: Auth) -> tuple[ApiKey, ...]:
    """Those of the settings and of the file. Raises ``ConfigError``."""
    if auth.file is None:
        return auth.keys
    values = read_config(auth.file)
    try:
        return auth.keys + KeyFile.model_validate(values).keys
    except ValidationError as error:
        # Without what stands there, which may be a key.
        faults = (f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(f"{auth.file}: {'; '.join(faults)}") from None


def keyring_of(keys: Sequence[ApiKey]) -> Keyring:
    """Raises ``ConfigError``."""
    try:
        return Keyring((key.stored, _grant(key)) for key in keys)
    except ValueError as error:
        raise ConfigError(f"auth.keys: {error}") from error


class Authority:
    """Raises ``ConfigError`` for keys that cannot be used."""

    def __init__(self, auth: Auth, busy_retry_after: int, workers_directory: Path | None = None) -> None:
        """``busy_retry_after``: seconds that are told where nobody knows when something will end.
        ``workers_directory``: where several workers meet, to count together."""
        self._auth = auth
        self._busy_retry_after = busy_retry_after
        self._workers_directory = workers_directory
        self._keyring = keyring_of(configured_keys(auth))
        self._accounts: dict[Grant, Account] = {}
        secret = auth.cache_salt_secret
        if secret is None:
            log.warning("auth.cache_salt_secret is not set: caches are shared by this server's workers alone")
        self._tenancy = Tenancy(
            secrets.token_bytes(32) if secret is None else secret.get_secret_value().encode()
        )

    def __repr__(self) -> str:
        return f"<Authority {self._keyring!r} {self._accounts!r}>"

    def access(self, headers: Headers) -> Access:
        """Raises ``InvalidKey``."""
        try:
            shown = shown_key(headers)
        except Ambiguous:
            shown = None
        grant = self._keyring.find(shown or b"")
        if grant is None:
            raise InvalidKey
        return Access(grant, self._tenancy)

    def begin(self, grant: Grant, now: float) -> Account:
        """One more request, which ends with ``Account.end``. Raises ``TooMany``."""
        account = self._accounts.get(grant)
        if account is None:
            account = self._accounts[grant] = account_of(grant, self._workers_directory)
        wait = account.begin(now)
        if wait == math.inf:
            raise TooMany(
                f"this API key has {grant.concurrent_requests} requests under way, which is its limit",
                "concurrent_requests",
                self._busy_retry_after,
            )
        if wait:
            raise TooMany(
                f"this API key may make {grant.requests_per_minute} requests a minute",
                "requests_per_minute",
                math.ceil(wait),
            )
        return account

    async def follow(self) -> None:
        """Read the file again whenever it has changed, until cancelled."""
        path = self._auth.file
        if path is None:
            return
        seen = await asyncio.to_thread(_version, path)
        while True:
            await asyncio.sleep(self._auth.file_interval)
            version = await asyncio.to_thread(_version, path)
            if version != seen:
                seen = version
                await self.read_again()

    async def read_again(self) -> None:
        try:
            keys = await asyncio.to_thread(configured_keys, self._auth)
            self._keyring = keyring_of(keys)
        except ConfigError as error:
            log.error("keys not read again, the old ones are kept", error=str(error))
            return
        grants = {_grant(key) for key in keys}
        self._accounts = {grant: account for grant, account in self._accounts.items() if grant in grants}
        log.info("keys read again", keys=[key.name for key in keys])


def _grant(key: ApiKey) -> Grant:
    return Grant(
        name=key.name,
        tenant=key.tenant or key.name,
        models=None if key.models is None else frozenset(key.models),
        concurrent_requests=key.concurrent_requests,
        requests_per_minute=key.requests_per_minute,
        max_tokens=key.max_tokens,
        explain=key.explain,
    )


def _version(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
