"""Certificates made for a test: an authority, a server on loopback, a client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


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


def bare_authority(directory: Path) -> tuple[Path, Pair]:
    """An authority without key identifiers and key usage, as those of many Kubernetes clusters are, and a
    server on 127.0.0.1 that it has signed."""

    def built(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kubernetes")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
        )

    def written(name: str, certificate: x509.Certificate) -> Path:
        path = directory / name
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return path

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    basic = x509.BasicConstraints(ca=True, path_length=None)
    root = built("kubernetes", authority).add_extension(basic, critical=True)
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    leaf = built("kube-apiserver", server).add_extension(names, critical=False)
    key = directory / "bare.key"
    key.write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    shown = written("bare.crt", leaf.sign(authority, hashes.SHA256()))
    return written("bare-ca.crt", root.sign(authority, hashes.SHA256())), Pair(shown, key)
