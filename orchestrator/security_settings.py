"""Settings of who may ask and of how connections are protected. Their place is in ``settings.Settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from orchestrator.core.keys import StoredKey

Limit = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ApiKey(_Section):
    """One key. Limits count in each process; without one there is none but those of ``admission``."""

    name: Annotated[str, Field(pattern=r"^[\x20-\x7e]{1,100}$")]
    """Stands for the key in logs."""
    hash: SecretStr
    """The line that ``pd-orchestrator key`` prints."""
    tenant: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Keys of one tenant share its queue and its prefix cache. The name by default."""
    models: tuple[str, ...] | None = None
    """Names that may be asked for; all when not given."""
    concurrent_requests: Limit | None = None
    requests_per_minute: Limit | None = None
    max_tokens: Limit | None = None
    """Of one choice. More asked for is refused; what does not ask is cut here."""
    explain: bool = False
    """``X-PD-Explain`` is honoured, which tells addresses of members."""

    @field_validator("hash")
    @classmethod
    def _is_a_line(cls, value: SecretStr) -> SecretStr:
        StoredKey.read(value.get_secret_value())
        return value

    @property
    def stored(self) -> StoredKey:
        return StoredKey.read(self.hash.get_secret_value())


class Auth(_Section):
    """With a key or a file of keys every request needs one, but for ``/health`` and ``/ready``; ``/metrics``
    then asks for ``server.admin_key``, as ``/status`` and ``/admin`` do."""

    keys: tuple[ApiKey, ...] = ()
    file: Path | None = None
    """TOML, YAML or JSON with more ``keys``."""
    file_interval: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """After which it is looked at again. A file that cannot be used changes nothing."""
    cache_salt_secret: Annotated[SecretStr, Field(min_length=16)] | None = None
    """Makes the tenants' cache salts. The same for all orchestrators in front of the same engines; a random
    one for each start when not given."""

    @property
    def required(self) -> bool:
        return bool(self.keys) or self.file is not None


class KeyFile(_Section):
    """What ``Auth.file`` holds."""

    keys: tuple[ApiKey, ...] = ()


class ServerTls(_Section):
    """TLS towards clients, with certificate and key."""

    certificate: Path | None = None
    """PEM, with the chain."""
    key: Path | None = None
    client_ca: Path | None = None
    """Clients must then show a certificate of this authority."""

    @model_validator(mode="after")
    def _whole(self) -> ServerTls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        if self.client_ca is not None and self.certificate is None:
            raise ValueError("client_ca needs certificate and key")
        return self


class MemberTls(_Section):
    """TLS towards members whose URLs are https."""

    ca: Path | None = None
    """Whom members' certificates must be of; the system's authorities when not given."""
    certificate: Path | None = None
    """What is shown to members that ask (mTLS). PEM, with the chain."""
    key: Path | None = None

    @model_validator(mode="after")
    def _whole(self) -> MemberTls:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        return self
