"""An authority that signs certificates of gateways and clients, by OpenSSL."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Authority:
    """Signs certificates."""

    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "ca.pem"

    def sign(self, name: str, subject: str, address: str = "") -> tuple[Path, Path]:
        """Return the files of a certificate and of its key."""
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={address}\n" if address else "")
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", subject,
                      "-keyout", str(key), "-out", f"{certificate}.csr")  # fmt: skip
        self._openssl("x509", "-req", "-in", f"{certificate}.csr", "-CA", str(self.certificate), "-days", "2",
                      "-CAkey", str(self.folder / "ca.key"), "-CAcreateserial", "-out", str(certificate),
                      "-extfile", str(extensions))  # fmt: skip
        return certificate, key

    def make(self) -> Authority:
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days",
                      "2", "-subj", "/CN=authority", "-keyout", str(self.folder / "ca.key"),
                      "-out", str(self.certificate))  # fmt: skip
        return self

    def client(self, name: str | None = None, subject: str = "/O=example/CN=alice") -> ssl.SSLContext:
        """Return the side of a client; of one without a certificate for no name."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.check_hostname = False
        if name is not None:
            context.load_cert_chain(*self.sign(name, subject))
        return context

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)
