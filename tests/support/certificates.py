"""Certificates made for a test: an authority, a server on loopback, a client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pair:
    """PEM files."""

    certificate: Path
    key: Path


class Authority:
    def __init__(self, directory: Path, name: str) -> None:
        self._ca = trustme.CA()
        self._directory = directory
        self._name = name
        self.file = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def pair(self, identity: str) -> Pair:
        """A certificate for ``identity``: a host, an address, or for a client any name."""
        issued = self._ca.issue_cert(identity)
        stem = self._directory / f"{self._name}-{identity.replace(':', '_')}"
        pair = Pair(stem.with_suffix(".crt"), stem.with_suffix(".key"))
        issued.private_key_pem.write_to_path(pair.key)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(pair.certificate, append=True)
        return pair

    def client_context(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Of a client that trusts this authority and shows ``pair``."""
        context = ssl.create_default_context(cafile=self.file)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def server_context(self, pair: Pair, *, asks: bool) -> ssl.SSLContext:
        """Of a server that shows ``pair``; ``asks``: clients need a certificate of this authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        if asks:
            context.load_verify_locations(self.file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
