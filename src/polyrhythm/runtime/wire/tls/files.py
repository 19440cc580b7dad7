"""The certificate, key and authority of this host, by the environment of its processes.

They are not part of what a job tells its workers: each host has its own. A server shows its certificate; who connects
shows the job's token, as without TLS, in a proof that is bound to the certificate it has seen. So a certificate of
the same authority does not help who has no token, names in it need not be compared, and `polyrhythm ctl` needs only
the authority's.
"""

import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.tls.sockets import TlsSocket

CERT, KEY, CA = "POLYRHYTHM_TLS_CERT", "POLYRHYTHM_TLS_KEY", "POLYRHYTHM_TLS_CA"
"""Environment variables with the paths of the host's certificate, of its key, and of the authority's certificate."""


class TlsFiles(NamedTuple):
    """Paths in the PEM format; no authority: no TLS. Who only connects needs no certificate."""

    cert: str = ""
    key: str = ""
    ca: str = ""

    def client(self) -> ssl.SSLContext:
        """For connections of this host to others.

        Raises:
            UsageError: for a file that cannot be read.
        """
        return client_context(self.ca)

    def server(self) -> ssl.SSLContext:
        """For connections that come to this host.

        Raises:
            UsageError: for files that cannot be read or do not fit.
        """
        return server_context(self.cert, self.key)


def files_of(environment: Mapping[str, str]) -> TlsFiles:
    return TlsFiles(*(environment.get(name, "") for name in (CERT, KEY, CA)))


@cache
def client_context(ca: str) -> ssl.SSLContext:
    context = base_context(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # see the module
    read(f"--tls-ca {ca}", lambda: context.load_verify_locations(ca))
    return context


@cache
def server_context(cert: str, key: str) -> ssl.SSLContext:
    context = base_context(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # nobody comes back
    # A password would be asked for on the terminal.
    read(f"--tls-cert {cert} with --tls-key {key}", lambda: context.load_cert_chain(cert, key, password=lambda: ""))
    context.shown = ssl.PEM_cert_to_DER_cert(first_certificate(cert))  # type: ignore[attr-defined]
    return context


def first_certificate(path: str) -> str:
    """That of the host; those of authorities between it and the job's may follow it."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    with open(path, encoding="ascii", errors="replace") as file:
        body = file.read().partition(begin)[2].partition(end)[0]
    return f"{begin}{body}{end}"


def base_context(kind: int) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.sslsocket_class = TlsSocket
    return context


def read(what: str, load: Any) -> None:
    try:
        load()
    except OSError as error:  # of which those of the ssl module are, too
        raise UsageError(f"{what} cannot be used: {reason_of(error)}") from None


def reason_of(error: OSError) -> str:
    """What is wrong with a file or a handshake, in a few words.

    >>> reason_of(FileNotFoundError(2, "No such file or directory")), reason_of(OSError())
    ('No such file or directory', 'OSError')
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError):
        words = {"KEY_VALUES_MISMATCH": "the key belongs to another certificate", None: "it is no PEM file, or damaged"}
        return words.get(error.reason) or str(error.reason).replace("_", " ").lower()
    return error.strerror or str(error) or type(error).__name__


def check_files(files: TlsFiles, serves: bool = True) -> None:
    """Whether these files give connections: a server of this host is believed by whoever has the authority's.

    Args:
        files: of this host.
        serves: whether others connect to this host.

    Raises:
        UsageError: if not; one line that names the file.
    """
    if not any(files):
        return
    missing = [flag for flag, path in zip(("--tls-cert", "--tls-key", "--tls-ca"), files, strict=True) if not path]
    if not files.ca or (serves and missing):
        raise UsageError(f"TLS between hosts needs --tls-cert, --tls-key and --tls-ca; {missing[0]} is missing")
    client = files.client()
    if not serves:
        return
    try:
        shake(client, files.server())
    except ssl.SSLError as error:
        raise UsageError(
            f"--tls-cert {files.cert} is not believed with --tls-ca {files.ca}: {reason_of(error)}"
        ) from None


def shake(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """A handshake of this process with itself.

    Raises:
        ssl.SSLError: if it fails.
    """
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)]
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
