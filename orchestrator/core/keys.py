"""API keys: what is stored of one, how one that a client shows is recognised, and what it is good for.

A key reads ``pd-<id>-<secret>``; stored is a line ``sha256$<id>$<salt>$<digest>``. The secret is 256 random
bits, so a salted SHA-256 cannot be turned back by guessing, and a slow hash would only slow every request.

The id finds the line. Then one digest is made and one compared, in constant time; the same work is done when
the id is unknown or what was shown is no key. So the time of an answer tells neither which ids exist nor how
many keys there are.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
SALT_BYTES: Final = 16
RANDOM_BYTES: Final = ID_BYTES + SECRET_BYTES + SALT_BYTES
"""What ``new_key`` needs."""

MAX_KEY_BYTES: Final = 256
"""Longer ones are none."""

_KEY = re.compile(rb"pd-([0-9a-f]{16})-[A-Za-z0-9_-]{43}")
_LINE = re.compile(r"sha256\$([0-9a-f]{16})\$([0-9a-f]{32})\$([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class StoredKey:
    id: str
    salt: bytes
    digest: bytes

    @classmethod
    def read(cls, line: str) -> StoredKey:
        """Raises ``ValueError``, which does not repeat the line: somebody may have put a key there."""
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError("must be a line that `pd-orchestrator key` has printed, like sha256$…$…$…")
        return cls(match[1], bytes.fromhex(match[2]), bytes.fromhex(match[3]))

    def line(self) -> str:
        return f"sha256${self.id}${self.salt.hex()}${self.digest.hex()}"


@dataclass(frozen=True, slots=True)
class Grant:
    """What the owner of a key may do. None: without a limit of its own."""

    name: str
    tenant: str
    """Whose work this is: shares of queues and caches go by it."""
    models: frozenset[str] | None = None
    concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    max_tokens: int | None = None
    """Output tokens of one choice."""
    explain: bool = False
    """Sees which members served a request, and with it their addresses."""


def digest_of(salt: bytes, key: bytes) -> bytes:
    return hashlib.sha256(salt + key).digest()


def new_key(random: bytes) -> tuple[str, StoredKey]:
    """The key for its owner and what to store of it, from ``RANDOM_BYTES`` random bytes."""
    if len(random) != RANDOM_BYTES:
        raise ValueError(f"needs {RANDOM_BYTES} random bytes")
    identifier = random[:ID_BYTES].hex()
    secret = urlsafe_b64encode(random[ID_BYTES : ID_BYTES + SECRET_BYTES]).rstrip(b"=").decode()
    salt = random[ID_BYTES + SECRET_BYTES :]
    key = f"pd-{identifier}-{secret}"
    return key, StoredKey(identifier, salt, digest_of(salt, key.encode()))


_NOBODY: Final = StoredKey("", bytes(SALT_BYTES), bytes(hashlib.sha256().digest_size))
"""Compared with where there is no such id."""


class Keyring:
    """Every key and its grant. ``digest`` and ``equal`` are there for tests to count the work."""

    def __init__(
        self,
        keys: Iterable[tuple[StoredKey, Grant]],
        *,
        digest: Callable[[bytes, bytes], bytes] = digest_of,
        equal: Callable[[bytes, bytes], bool] = hmac.compare_digest,
    ) -> None:
        """Raises ``ValueError`` for two keys with the same id or name."""
        self._keys: dict[bytes, tuple[StoredKey, Grant]] = {}
        self._digest = digest
        self._equal = equal
        names: set[str] = set()
        for stored, grant in keys:
            if stored.id.encode() in self._keys or grant.name in names:
                raise ValueError(f"two keys are named {grant.name!r} or are the same")
            self._keys[stored.id.encode()] = stored, grant
            names.add(grant.name)

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return f"<Keyring of {len(self)}>"

    def find(self, shown: bytes) -> Grant | None:
        match = _KEY.fullmatch(shown)
        found = None if match is None else self._keys.get(match[1])
        stored, grant = (_NOBODY, None) if found is None else found
        same = self._equal(self._digest(stored.salt, shown[:MAX_KEY_BYTES]), stored.digest)
        return grant if same else None
