"""A certificate that the vendor signs itself, for services without one of their own."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cutlayer.core import ConfigError, Fault
from cutlayer.core.files import write_whole

_DAYS = 825
"""The longest life that common TLS clients accept."""


def make_certificate(host: str, *, certificate: Path, private_key: Path) -> None:
    """Makes a P-256 key and a certificate for one host, signed by itself.

    Customers trust it by getting the certificate file, so its issuer matters to nobody.

    Args:
        host: DNS name or IP address under which customers reach the vendor.
        certificate: Where the certificate goes; hand it to customers.
        private_key: Where the key goes, readable by the owner only.

    Raises:
        ConfigError: The host is neither name nor address.
    """
    name: x509.GeneralName
    try:
        name = x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        try:
            name = x509.DNSName(host)
        except ValueError as error:
            raise ConfigError([Fault("tls_host", host, "must be a DNS name in ASCII or an IP address")]) from error
        if not host or len(host) > 64 or any(character in host for character in " /:"):
            raise ConfigError([Fault("tls_host", host, "must be a DNS name or an IP address, nothing else")]) from None
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    start = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - timedelta(hours=1))  # clocks differ
        .not_valid_after(start + timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([name]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    unlocked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_whole(private_key, unlocked)
    write_whole(certificate, signed.public_bytes(serialization.Encoding.PEM), mode=0o644)
