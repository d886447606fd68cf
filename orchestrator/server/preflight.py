"""What settings name on disk, read once before anything starts: a mistake there is one line, not a traceback
of a worker."""

from __future__ import annotations

import ssl

from orchestrator.hops.tls import Tls
from orchestrator.server.authority import configured_keys, keyring_of
from orchestrator.settings import ConfigError, Settings


def check_files(settings: Settings) -> None:
    """Raises ``ConfigError``."""
    keyring_of(configured_keys(settings.auth))
    ours, theirs = settings.server.tls, settings.members.tls
    try:
        Tls(theirs.ca, theirs.certificate, theirs.key).load()
    except OSError as error:
        raise ConfigError(f"members.tls: {error}") from error
    try:
        if ours.certificate is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(ours.certificate, ours.key)
        if ours.client_ca is not None:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ours.client_ca)
    except OSError as error:
        raise ConfigError(f"server.tls: {error}") from error
