from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.errors import ScenarioError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Device, Faults, Leave, Limits, Scenario, Straggler, TimingWorkload, simulate
from polyrhythm.sim.cluster.files import built_in_scenarios, checked, load_scenario, scenario_toml

NAMES = [
    "local-straggler",
    "mixed-hardware",
    "random-sleep",
    "stragglers-mild",
    "stragglers-moderate",
    "thin-links",
    "uniform",
]


def saved(folder: Path, text: str) -> str:
    """A file with this text."""
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_built_in() -> None:
    scenarios = built_in_scenarios()
    assert list(scenarios) == NAMES
    assert all(scenarios.values())


@pytest.mark.parametrize("name", NAMES)
def test_built_in_scenarios_train_cite_and_round_trip(name: str, tmp_path: Path) -> None:
    scenario = load_scenario(name)
    assert scenario.name == name
    assert scenario.source
    assert scenario.training is not None
    assert scenario.training.task == "digits"
    assert scenario.training.batch_size == scenario.workload.batch_size
    assert load_scenario(saved(tmp_path, scenario_toml(scenario))) == scenario


def test_figures_of_the_papers() -> None:
    mixed, thin = load_scenario("mixed-hardware"), load_scenario("thin-links")
    assert (mixed.mean_compute_s, mixed.batch_size) == ([3.5] * 2 + [0.03] * 4, 64)
    assert (thin.workers, thin.network.server_gbps, thin.network.message_bytes) == (16, 5, 507e6)
    stragglers = {name: load_scenario(f"stragglers-{name}") for name in ("mild", "moderate")}
    drawn = {name: scenario.faults.random_stragglers[0] for name, scenario in stragglers.items()}
    assert {scenario.workers for scenario in stragglers.values()} == {8}
    assert [(d.workers, d.occurrences, d.extra_latency_s) for d in drawn.values()] == [(1, 1, 0.01), (2, 4, 0.03)]
    sleep = load_scenario("random-sleep")
    assert sleep.compute.sleep is not None
    assert (sleep.workers, sleep.batch_size, sleep.compute.sleep.probability) == (10, 16, 0.3)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    compute_s=st.floats(1e-3, 1e3),
    time_s=st.one_of(st.just(float("inf")), st.floats(0.1, 10)),
    step=st.integers(0, 9),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], compute_s: float, time_s: float, step: int
) -> None:
    scenario = Scenario(
        devices=[Device(count=count, compute_s=compute_s) for count in counts],
        faults=Faults(stragglers=[Straggler(workers=[0], start_s=1)], leaves=[Leave(worker=0, step=step)]),
        limits=Limits(time_s=time_s),
    )
    assert load_scenario(saved(tmp_path_factory.mktemp("toml"), scenario_toml(scenario))) == scenario


def test_a_file_is_named_after_its_stem(tmp_path: Path) -> None:
    assert load_scenario(saved(tmp_path, "[[devices]]")).name == "mine"


def test_overrides() -> None:
    scenario = load_scenario(
        "uniform",
        {
            "training.task": "fashion-mnist",
            "training.model": "none",
            "devices.0.count": "3",
            "network.latency_s": "0.5",
            "limits.stop_at_target": "true",
            "training.momentum": "0.9",
        },
    )
    assert scenario.training is not None
    assert (scenario.training.task, scenario.training.model, scenario.training.momentum) == ("fashion-mnist", None, 0.9)
    assert (scenario.workers, scenario.network.latency_s, scenario.limits.stop_at_target) == (3, 0.5, True)
    assert load_scenario("uniform", {"training": "none"}).training is None


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("devices.1.count", "3", r"override 'devices.1.count': there is no '1'; it needs a number below 1"),
        ("devices.x", "3", "there is no 'x'; it needs a number below 1"),
        ("name.length", "3", "override 'name.length': name is not a table"),
        ("name.length.more", "3", "override 'name.length.more': there is no 'length'; it needs a table there"),
        ("network.lateny_s", "3", "network.lateny_s: unknown key 'lateny_s': did you mean latency_s?"),
        (".", "3", r"override '\.' has an empty part; write a key such as training.epochs"),
        ("network..latency_s", "3", r"override 'network\.\.latency_s' has an empty part"),
        ("netwerk", "3", "netwerk: unknown key 'netwerk': did you mean network?"),
        ("network.averaging", "rings", "network.averaging: unknown value 'rings': did you mean ring?"),
        ("network.latency_s", "fast", "network.latency_s is wrong: expected `float`, got `str`, but got 'fast'"),
        ("network.latency_s", "-1", r"network.latency_s is wrong: expected `float` >= 0.0, but got -1"),
        ("network.latency_s", "nan", "network.latency_s is wrong: expected `float` >= 0.0, but got nan"),
        ("network.message_bytes", "inf", "network.message_bytes is wrong: expected `float` <= 1e\\+18, but got inf"),
        ("devices.0.count", "0", r"devices\[0\].count is wrong: expected `int` >= 1, but got 0"),
        ("devices.0.count", "10000000000", r"devices\[0\].count is wrong: expected `int` <= 1000000, but got 1000000"),
        (
            "devices",
            "[{count = 999999}, {count = 2}]",
            "devices: 1000001 workers are more than the 1000000 that can be",
        ),
        (
            "devices.0.compute_s",
            "1e-320",
            r"devices\[0\].compute_s is wrong: expected `float` >= 1e-12, but got 1e-320",
        ),
        ("devices", "[]", r"devices is wrong: expected `array` of length >= 1, but got \[\]"),
        ("devices", "none", "devices is required; give it"),
        ("compute.sleep", "{probability = 0.1}", "compute.sleep.mean_s is required; give it"),
        ("compute.sleep.mean_s", "'x'", "compute.sleep.mean_s is wrong: expected `float`, got `str`, but got 'x'"),
        ("compute.deviation", "none", None),
        ("compute.distribution", "constant", "compute.deviation must be 0 for distribution = 'constant' but got 0.05"),
        ("compute.trace", "'x'", "compute.trace goes with distribution = 'trace' but got trace 'x'"),
        ("training.batch_size", "0", "training.batch_size must be at least 1 but got 0"),
        ("training.task", "digit", "training.task: unknown task 'digit': did you mean digits?"),
        ("training.bach_size", "8", "training.bach_size: unknown key 'bach_size': did you mean batch_size?"),
        ("faults.stragglers", "[{workers = [0]}]", "faults.stragglers needs start_s or start_step, and not both"),
        ("faults.leaves", "[{worker = 8, step = 1}]", "faults.leaves: there is no worker 8"),
        ("faults.leaves", "[{worker = 0, step = 1, reason = 'left'}]", r"faults.leaves\[0\].reason: unknown value"),
    ],
)
def test_every_mistake_is_one_line_with_its_place(key: str, value: str, message: str | None) -> None:
    if message is None:
        assert load_scenario("uniform", {key: value}).compute.deviation == 0
        return
    with pytest.raises(ScenarioError, match=message) as caught:
        load_scenario("uniform", {key: value})
    assert "\n" not in str(caught.value)


def test_unknown_name() -> None:
    with pytest.raises(ScenarioError, match="'unifrom' is neither a file nor built in: did you mean uniform"):
        load_scenario("unifrom")


def test_not_toml(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"scenario '/.*/mine.toml' is not TOML"):
        load_scenario(saved(tmp_path, "devices = ["))


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match="cannot read scenario"):
        load_scenario(str(path))


def test_a_scenario_made_in_python_is_checked_too() -> None:
    with pytest.raises(ScenarioError, match=r"devices\[0\].compute_s is wrong"):
        checked(Scenario(devices=[Device(compute_s=-1)]))
    good = Scenario(devices=[Device()])
    assert checked(good) == good


def test_every_field_is_in_the_guide() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/scenarios.md").read_text(encoding="utf-8")
    headings = {"Scenario": "### Top level", "faults": "### `[faults]`"}
    missing = []
    for heading, struct in tables(Scenario):
        section = guide.partition(headings.get(heading, heading) + "\n")[2].partition("\n#")[0]
        missing += [f"{heading} {f.name}" for f in msgspec.structs.fields(struct) if f"| `{f.name}` |" not in section]
    assert missing == []


def tables(struct: type[msgspec.Struct], path: str = "") -> list[tuple[str, type[msgspec.Struct]]]:
    """Every table of a scenario file, with its heading in the guide."""
    found = [(path or "### Top level", struct)]
    for f in msgspec.structs.fields(struct):
        kind, is_list = innermost(f.type)
        if kind is not None:
            name = ".".join(filter(None, [path.strip("#` []"), f.name]))
            level = "#" * (3 + name.count("."))
            found += tables(kind, f"{level} `[[{name}]]`" if is_list else f"{level} `[{name}]`")
    return found


def innermost(kind: object) -> tuple[type[msgspec.Struct] | None, bool]:
    """The struct that a field's type is about, and whether there may be several."""
    info = msgspec.inspect.type_info(kind)
    for option in info.types if isinstance(info, msgspec.inspect.UnionType) else (info,):
        if isinstance(option, msgspec.inspect.StructType):
            return option.cls, False
        if isinstance(option, msgspec.inspect.ListType) and isinstance(option.item_type, msgspec.inspect.StructType):
            return option.item_type.cls, True
    return None, False


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "scenario '/.*/mine.toml' is not TOML: it is nested too deeply"),
        ("a." * 50_000 + "a = 1", "scenario '/.*/mine.toml' is not TOML: it has a key of more than 50 parts at line 1"),
    ],
    ids=["nested", "long key"],
)
def test_what_a_parser_cannot_take_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{line}$"):
        load_scenario(saved(tmp_path, text))


def test_an_override_that_a_parser_cannot_take_is_one_line() -> None:
    with pytest.raises(ScenarioError, match="a key has at most 50 parts"):
        load_scenario("uniform", {"a." * 50_000 + "a": "1"})
    with pytest.raises(ScenarioError):
        load_scenario("uniform", {"seed": "[" * 5000})


@pytest.mark.parametrize("overrides", [["training.epochs=5"], "training.epochs=5", {1: 2}, 3])
def test_overrides_are_values_by_key(overrides: Any) -> None:
    with pytest.raises(
        ScenarioError, match=r"^overrides must be values by key, as in \{'training.epochs': '5'\}, but got "
    ):
        load_scenario("uniform", overrides)


def test_a_scenario_made_of_tuples_is_refused_as_one_of_lists_is() -> None:
    scenario = Scenario(devices=(Device(count=2, compute_s=-1),))  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match=r"devices\[0\].compute_s is wrong: .* but got -1"):
        simulate(scenario, parse_policy("bsp"))


@pytest.mark.parametrize("devices", [3, [], [3], Device(), None])
def test_devices_are_a_list_of_devices(devices: Any) -> None:
    with pytest.raises(ScenarioError, match=r"devices must be a list, as in \[Device\(count=4\)\], but got "):
        Scenario(devices=devices)


@pytest.mark.parametrize("count", [0, -1, "x", 1.5])
def test_devices_are_counted(count: Any) -> None:
    with pytest.raises(UsageError, match=rf"^devices.0.count must be a whole number of at least 1 but got {count!r}$"):
        Scenario(devices=[Device(count=count)])


def test_a_scenario_is_loaded_from_a_name_or_a_path(tmp_path: Path) -> None:
    assert load_scenario(Path("uniform")) == load_scenario("uniform")
    wrong: Any = None
    with pytest.raises(UsageError, match="name_or_path must be a path but got None"):
        load_scenario(wrong)
    with pytest.raises(ScenarioError, match=r"^cannot read scenario 'aaa"):
        load_scenario("a" * 5000)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    given: Any = {"count": np.int64(2), "compute_s": np.float32(0.5), "bandwidth_gbps": np.float64(4.0)}
    scenario = Scenario(devices=[Device(**given)], workload=TimingWorkload(samples=64))
    plain = Scenario(devices=[Device(count=2, compute_s=0.5, bandwidth_gbps=4.0)], workload=TimingWorkload(samples=64))
    assert scenario_toml(scenario) == scenario_toml(plain)
    assert simulate(scenario, "bsp").duration_s == simulate(plain, "bsp").duration_s


@pytest.mark.parametrize("value", [object(), len, 1j])
def test_what_is_no_value_is_one_line(value: Any) -> None:
    with pytest.raises(ScenarioError, match=r"^a scenario has numbers, text, .* in it, but got "):
        simulate(Scenario(devices=[Device(compute_s=value)]), "bsp")


@pytest.mark.parametrize("value", [None, [], "none", 3])
def test_faults_are_faults(value: Any) -> None:
    with pytest.raises(ScenarioError, match=r"^faults must be Faults, as in Faults\("):
        Scenario(devices=[Device()], faults=value)
