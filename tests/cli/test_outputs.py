from pathlib import Path

import pytest

from polyrhythm.cli.outputs import Outputs
from polyrhythm.errors import PolyrhythmError


def test_missing_folders_are_made_and_no_file_is_left(tmp_path: Path) -> None:
    Outputs(json=tmp_path / "a" / "out.json", trace=tmp_path / "b" / "traces").prepare()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "traces"]


def test_what_is_in_a_file_stays_until_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old", encoding="utf-8")
    Outputs(json=path).prepare()
    assert path.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("option", ["json", "report", "timeline", "perfetto"])
def test_a_folder_is_no_file(tmp_path: Path, option: str) -> None:
    with pytest.raises(PolyrhythmError, match=rf"--{option} '.*' cannot be written: Is a directory"):
        Outputs(**{option: tmp_path}).prepare()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(PolyrhythmError, match=r"--trace '.*file' cannot be made: File exists"):
        Outputs(trace=path).prepare()
    with pytest.raises(PolyrhythmError, match=r"--json '.*' cannot be written: Not a directory|File exists"):
        Outputs(json=path / "out.json").prepare()
