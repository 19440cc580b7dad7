from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import Result

from polyrhythm.cli.options import split_policies
from polyrhythm.errors import SpecError

SPECS = (
    "bsp",
    "ssp:3",
    "post-local:h=8,at=0.5",
    "dssp:3,15",
    "dssp:s_low=1,s_high=2",
    "(ssp:3,4)",
    "./a b.py:Mine:k=2",
)


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("bsp", ["bsp"]),
        ("bsp,post-local:h=8,at=0.5,asp", ["bsp", "post-local:h=8,at=0.5", "asp"]),
        ("dssp:3,15,k-sync:6", ["dssp:3,15", "k-sync:6"]),
        ("ssp:inf,ssp:2,inf", ["ssp:inf", "ssp:2,inf"]),
        ("(switch:bsp,asp),asp", ["(switch:bsp,asp)", "asp"]),
        (" bsp , asp ", ["bsp", "asp"]),
        ("bsp,asp,bsp", ["bsp", "asp"]),
        ("./mine.py:Mine:k=3,j=4,bsp", ["./mine.py:Mine:k=3,j=4", "bsp"]),
    ],
)
def test_a_part_that_cannot_be_a_policy_belongs_to_the_one_before(text: str, specs: list[str]) -> None:
    assert split_policies(text) == specs


@given(st.lists(st.sampled_from(SPECS), min_size=1, unique=True))
def test_any_list_of_specs_comes_apart_again(specs: list[str]) -> None:
    assert split_policies(",".join(specs)) == specs


@pytest.mark.parametrize("text", ["", "bsp,,asp", "bsp,", " , bsp"])
def test_an_empty_part_is_one_line(text: str) -> None:
    with pytest.raises(SpecError, match="has an empty part; write specs between commas"):
        split_policies(text)


def test_unbalanced_parentheses_are_one_line() -> None:
    with pytest.raises(SpecError, match="unbalanced parentheses"):
        split_policies("(bsp,asp")


@pytest.mark.parametrize(
    "words",
    [
        *(("simulate", "uniform"), ("search-cost", "none.csv"), ("learn", "x.json"), ("diagnose", "uniform")),
    ],
)
def test_a_seed_is_one_that_everything_random_takes(call: Callable[..., Result], words: tuple[str, ...]) -> None:
    done = call(*words, "--seed", 2**64)
    assert (done.exit_code, done.stdout) == (2, "")
    said = f"'--seed': Input should be less than or equal to 4294967295 but got '{2**64}'; see root {words[0]} --help\n"
    assert done.stderr.endswith(said)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("simulate uniform --show --json x.json", "--json is of runs, and --show runs nothing; leave it out"),
        ("compare uniform --show --ui", "--ui is of runs, and --show runs nothing; leave it out"),
        ("search uniform --algorithm-1 --reuse", "--reuse is set by --algorithm-1; leave it out"),
        (
            "calibrate local-straggler --seeds 3",
            "--seeds is of the runs of --policies, of which there are none; leave it out",
        ),
        *(
            (
                f"{command} local-straggler --set workload.samples=30",
                "--set workload.samples is for runs without training, and the scenario trains; set limits.samples or a "
                "key of training",
            )
            for command in ("search", "calibrate", "compare")
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_one_line(call: Callable[..., Result], words: str, line: str) -> None:
    done = call(*words.split())
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"polyrhythm: {line}\n")


def test_more_epochs_than_can_be_counted_are_one_line(call: Callable[..., Result]) -> None:
    done = call("calibrate", "local-straggler", "--epochs", "1e300")
    assert (done.exit_code, done.stdout) == (2, "")
    said = "Invalid value for '--epochs': Input should be less than or equal to 1000000 but got '1e300'"
    assert done.stderr.startswith(f"polyrhythm: {said}; see ")


@pytest.mark.parametrize("command", ["simulate", "compare", "search", "calibrate", "diagnose"])
def test_a_key_of_the_scenario_is_set_once(call: Callable[..., Result], command: str) -> None:
    done = call(command, "local-straggler", "--set", "training.epochs=1", "--set", "training.epochs=2")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "polyrhythm: --set gives training.epochs twice, as '1' and as '2'; give it once\n"
