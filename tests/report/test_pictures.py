import runpy
from pathlib import Path

import pytest

from polyrhythm.policies import BUILT_IN

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
REMEDY = "run python docs/pictures/make.py"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    pictures: dict[str, str] = runpy.run_path(str(FOLDER / "make.py"))["pictures"]()
    return pictures


def test_every_policy_has_a_picture(made: dict[str, str]) -> None:
    assert set(made) == {f"timeline-{name}.svg" for name in BUILT_IN} | {"compare.svg"}


def test_the_pictures_are_up_to_date(made: dict[str, str]) -> None:
    assert {path.name for path in FOLDER.glob("*.svg")} == set(made), REMEDY
    for name, svg in made.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == svg, f"{name}: {REMEDY}"
