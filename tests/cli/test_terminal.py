import re

import pytest

from polyrhythm.cli.terminal import print_figures, print_texts

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("columns", ["40", "200"])
def test_figures_are_never_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    heads = ["policy", *(f"figure number {n}" for n in range(6))]
    print_figures(heads, [["post-local:h=8,at=0.5", *(f"{n}23,456" for n in range(6))]])
    shown = capsys.readouterr().out
    for word in ("post-local:h=8,at=0.5", "023,456", "523,456"):
        assert word in shown


def test_texts_fold_into_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    print_texts(["name", "what it is"], [["uniform", "many words that say what this is about"]])
    lines = [ESCAPE.sub("", line) for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 40
    assert len(lines) > 5


def test_in_a_file_every_row_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_texts(["name", "what it is"], [["uniform", "long " * 60]])
    assert sum("uniform" in line and line.count("long") == 60 for line in capsys.readouterr().out.splitlines()) == 1
