"""An authority of a test: it signs certificates for `localhost`, and asks whoever shows one."""

import http.client
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates; its own is at `path`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.path = folder / f"{name}-ca.pem"
        self.path.write_bytes(_pem(_signed(self._name, self._name, self._key.public_key(), self._key, ca=True)))

    def pair(self, name: str, *, password: str = "") -> tuple[Path, Path]:
        """Files with a certificate for localhost and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert, private = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        cert.write_bytes(_pem(_signed(subject, self._name, key.public_key(), self._key)))
        how = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
        return cert, private

    def get(
        self,
        address: str,
        path: str,
        *,
        certificate: tuple[Path, Path] | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, str]:
        """What the server on this machine answers, if it shows a certificate of ours. `certificate` is the client's."""
        context = ssl.create_default_context(cafile=str(self.path))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        port = int(address.rpartition(":")[2])
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=context)
        try:
            connection.request("GET", path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _signed(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    private: ec.EllipticCurvePrivateKey,
    *,
    ca: bool = False,
) -> x509.Certificate:
    """With all that Python 3.13 asks of certificates: whose key it is, who signed it and, of an authority, for what."""
    now = datetime.now(UTC)
    signs = x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(signs, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(private.public_key()), critical=False)
        .sign(private, hashes.SHA256())
    )
