"""What a host has for TLS, checked before a process starts."""

from pathlib import Path

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.tls.files import TlsFiles, check_files
from tests.runtime.wire.tls.certificates import make_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_files(folder)
    make_files(folder, "other", authority="others")
    make_files(folder, "late", days=-1)
    (folder / "empty.pem").touch()
    return folder


def files(folder: Path, cert: str = "host.pem", key: str = "host.key", ca: str = "ca.pem") -> TlsFiles:
    return TlsFiles(*(str(folder / name) if name else "" for name in (cert, key, ca)))


def test_what_fits_is_taken(folder: Path) -> None:
    check_files(files(folder))
    check_files(TlsFiles())
    check_files(files(folder, "", ""), serves=False)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"key": "other.key"}, "the key belongs to another certificate"),
        ({"ca": "others.pem"}, "is not believed with --tls-ca {}/others.pem: unable to get local issuer certificate"),
        (
            {"cert": "late.pem", "key": "late.key"},
            "{}/late.pem is not believed with --tls-ca {}/ca.pem: cert",
        ),
        ({"cert": "none.pem"}, "--tls-cert {}/none.pem with --tls-key {}/host.key cannot be used: No such file or"),
        ({"cert": "host.key"}, "cannot be used: it is no PEM file, or damaged"),
        ({"ca": "empty.pem"}, "--tls-ca {}/empty.pem cannot be used: no certificate or crl found"),
        ({"ca": ""}, "TLS between hosts needs --tls-cert, --tls-key and --tls-ca; --tls-ca is missing"),
        ({"key": ""}, "TLS between hosts needs --tls-cert, --tls-key and --tls-ca; --tls-key is missing"),
    ],
)
def test_what_does_not_is_one_line(folder: Path, wrong: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        check_files(files(folder, **wrong))
    assert said.replace("{}", str(folder)) in str(refused.value)
    assert "\n" not in str(refused.value)
