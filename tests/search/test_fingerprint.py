from pathlib import Path

import pytest

from polyrhythm.errors import DataError
from polyrhythm.search.fingerprint import digest_of, fingerprint


def test_every_part_counts_and_order_does_not() -> None:
    parts = {"script": "abc", "workers": 8, "flags": ["--lr", "0.1"]}
    assert fingerprint(parts) == fingerprint(dict(reversed(parts.items())))
    for key, other in (("script", "abd"), ("workers", 9), ("flags", ["--lr", "0.2"])):
        assert fingerprint(parts | {key: other}) != fingerprint(parts)


def test_files_count_by_what_is_in_them(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "train").mkdir(parents=True)
    (folder / "train" / "a").write_bytes(b"1")
    before = digest_of([folder])
    assert list(before) == ["data/train/a"]
    (folder / "train" / "a").touch()
    assert digest_of([folder]) == before
    (folder / "train" / "a").write_bytes(b"2")
    assert digest_of([folder]) != before
    assert list(digest_of([folder / "train" / "a"])) == ["a/a"]
    with pytest.raises(DataError, match="cannot read"):
        digest_of([tmp_path / "none"])
