"""What settings name on disk, read once before anything starts: a mistake there is one line, not a traceback
of a worker."""

from __future__ import annotations

from orchestrator.server.authority import configured_keys, keyring_of
from orchestrator.settings import ConfigError, Settings
from render_tier.tls_files import UnusableFile, check_authorities, check_identity


def check_files(settings: Settings) -> None:
    """Raises ``ConfigError``."""
    keyring_of(configured_keys(settings.auth))
    ours, theirs = settings.server.tls, settings.members.tls
    for section, certificate, key, authorities in (
        ("members.tls", theirs.certificate, theirs.key, theirs.ca),
        ("server.tls", ours.certificate, ours.key, ours.client_ca),
    ):
        try:
            if certificate is not None:
                check_identity(certificate, key)
            if authorities is not None:
                check_authorities(authorities)
        except UnusableFile as error:
            raise ConfigError(f"{section}: {error}") from error
