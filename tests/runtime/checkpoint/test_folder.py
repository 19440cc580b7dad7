"""Which checkpoint of a folder is taken, and what is said of those that are not whole."""

from pathlib import Path

from polyrhythm.runtime.checkpoint.folder import CheckpointFolder


def test_of_the_oldest_it_is_not_said_that_the_one_before_is_taken(tmp_path: Path) -> None:
    folder, said = CheckpointFolder(tmp_path, keep=3), list[str]()
    for number in (1, 2):
        folder.place(number).mkdir()
    assert folder.newest(said.append) is None
    folder.close()
    reason = "No such file or directory"
    assert said == [
        f"checkpoint {folder.place(2)} is refused, and the one before is taken: {reason}",
        f"checkpoint {folder.place(1)} is refused, and there is none before: {reason}",
    ]
