"""Certificates for tests, made by the command `openssl`: no package does it without a dependency."""

import subprocess
from pathlib import Path

from polyrhythm.runtime.wire.tls.files import TlsFiles

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def make_authority(folder: Path, name: str = "ca") -> tuple[Path, Path]:
    """Its certificate and key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    openssl("req", "-x509", *CURVE, "-keyout", key, "-out", cert, "-subj", f"/CN={name}", "-days", "2")
    return cert, key


def make_files(folder: Path, name: str = "host", authority: str = "ca", days: int = 2) -> TlsFiles:
    """A host's, of an authority that is made if there is none; `days` below 0: expired."""
    ca, ca_key = folder / f"{authority}.pem", folder / f"{authority}.key"
    if not ca.exists():
        make_authority(folder, authority)
    cert, key, asked = (folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
    openssl("req", *CURVE, "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
    signed = "-CA", ca, "-CAkey", ca_key, "-days", str(days)
    openssl("x509", "-req", "-in", asked, "-out", cert, *signed)
    return TlsFiles(str(cert), str(key), str(ca))
