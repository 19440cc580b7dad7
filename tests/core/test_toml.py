"""What is read as TOML, and what is refused before it takes long."""

import tomllib
from pathlib import Path

import pytest

from polyrhythm.core.toml import read_toml

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "key",
    ["a" + ".a" * 60, "a" + " . a" * 60, '"a"' + '."b c"' * 60, "'a'" + ".'b.c'" * 60, "a" + ".a" * 50_000],
    ids=["bare", "spaces", "quoted", "literal", "huge"],
)
@pytest.mark.parametrize("form", ["\n{} = 1", "\n[{}]\nx = 1", "\nx = {{{} = 1}}", "\n[[{}]]"])
def test_a_key_of_many_parts_is_refused(form: str, key: str) -> None:
    with pytest.raises(ValueError, match=r"^it has a key of more than 50 parts at line 2$"):
        read_toml(form.format(key))


def test_a_mark_of_the_byte_order_is_passed_over() -> None:
    assert read_toml("\ufeff[a]\nb = 1") == {"a": {"b": 1}}


def test_what_only_looks_like_a_long_key_is_read() -> None:
    text = f"a{'.a' * 40} = 1\nnumbers = [{'1.5, ' * 500}]\nword = '{'x' * 200_000}'\npath = \"{'../' * 80}x\"\n"
    assert read_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("src/**/*.toml")), ids=lambda path: path.name)
def test_our_own_files_are_read_as_ever(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert read_toml(text) == tomllib.loads(text)


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = " + "{a = " * 5000, "x = 1\nx = 2", "d = 2021-13-45"])
def test_what_is_no_toml_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as one:
        read_toml(text)
    assert "\n" not in str(one.value)
