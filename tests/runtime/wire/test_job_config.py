"""One config of a job: what may stand in it, that every field has a flag, and that both agree on types and defaults."""

import inspect
import os
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest

from polyrhythm.errors import PolicyError, PolyrhythmError, UsageError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.job_file import IDLE, KEYS, REFUSED, SYNC_SWITCH
from polyrhythm.runtime.launch.rendezvous import job_of
from polyrhythm.runtime.launch.run_flags import ABOUT_THE_CALL, make_parser
from polyrhythm.runtime.wire.job_config import INTERNAL, TYPES, Given, JobConfig, converted, make_config

FLAGS = {action.dest: action for action in make_parser()._actions if action.option_strings and action.dest != "help"}
SETTINGS = [name for name in TYPES if name not in INTERNAL]


def test_every_flag_has_a_key_and_every_key_a_flag() -> None:
    assert set(FLAGS) - set(ABOUT_THE_CALL) == {*SETTINGS, *IDLE, *REFUSED} & set(FLAGS)
    assert set(SETTINGS) <= set(FLAGS)
    assert set(KEYS) - set(SYNC_SWITCH) >= set(FLAGS) - set(ABOUT_THE_CALL)
    assert len(set(KEYS)) == len(KEYS)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_flag_and_its_setting_agree(name: str) -> None:
    action, default = FLAGS[name], getattr(JobConfig(), name)
    declared = TYPES[name]
    kind = declared if get_origin(declared) is Literal or isinstance(declared, type) else get_args(declared)[0]
    if kind is bool:
        assert action.nargs == 0
    elif get_origin(kind) is Literal:
        assert tuple(action.choices or ()) == get_args(kind)
    else:
        assert (action.type or str) is kind
    if f"PET_{name.upper()}" not in os.environ:
        assert action.default == default


def test_each_setting_is_documented() -> None:
    texts = [inspect.getdoc(cls) or "" for cls in JobConfig.__mro__ if issubclass(cls, msgspec.Struct)]
    assert [name for name in TYPES if not any(f"\n    {name}: " in text for text in texts)] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shards": 0}, "shards must be at least 1 but got 0"),
        ({"epochs": 0, "given": {"epochs": "POLYRHYTHM_EPOCHS"}}, "^POLYRHYTHM_EPOCHS must be at least 1 but got 0"),
        (
            {"hang_after": float("nan"), "given": {"hang_after": "--hang-after"}},
            "^--hang-after must be more than 0",
        ),
        ({"delta_rate": float("inf")}, "delta_rate must be positive and finite but got inf"),
        ({"worker_gpus": -1.0}, "worker_gpus must be at least 0 but got -1"),
        (
            {"averaging": "star", "given": {"averaging": "a.toml"}},
            "averaging in a.toml must be ring or server but got",
        ),
        ({"on_divergence": "stop"}, "on_divergence must be ignore, end or rollback but got 'stop'"),
        ({"policy": "spp:3"}, "unknown policy 'spp': did you mean ssp?"),
        ({"compress": "int4"}, "int4"),
        (
            {"partition": "seldpp", "given": {"partition": "--partition"}},
            "^--partition: unknown partition 'seldpp': did you mean seldp?",
        ),
        ({"injection": "0.5", "given": {"injection": "a.toml"}}, "^injection in a.toml must be none or two shares"),
        ({"injection": "0.5,2"}, "injection must be none or two shares in"),
        ({"compensation": "dc-asgd", "full_duplex": True}, "full_duplex and compensation dc-asgd exclude each other"),
    ],
)
def test_an_impossible_value_is_one_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message) as caught:
        JobConfig(**values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("epochs", "two", "epochs in a.toml must be a whole number but got 'two'"),
        ("epochs", True, "epochs in a.toml must be a whole number but got True"),
        ("hang_after", "5", "hang-after in a.toml must be a number but got '5'"),
        ("full_duplex", 1, "full-duplex in a.toml must be true or false but got 1"),
        ("trace", 3, "trace in a.toml must be a text but got 3"),
        ("master_port", "x", "master-port in a.toml must be a whole number but got 'x'"),
        ("averaging", 1, "averaging in a.toml must be ring or server but got 1"),
    ],
)
def test_a_value_of_another_type_is_one_line(name: str, value: object, message: str) -> None:
    with pytest.raises(PolyrhythmError, match=f"^{message}$"):
        converted(name, value, "a.toml")


def test_a_policy_that_cannot_run_is_a_setting_that_is_refused() -> None:
    """It has broken nothing, which would be another exit status."""
    with pytest.raises(UsageError, match=r"^--policy: policy rlp:loss=probe cannot run on real workers") as refused:
        JobConfig(policy="rlp:loss=probe", given={"policy": "--policy"})
    assert not isinstance(refused.value, PolicyError)


def test_a_config_travels_whole() -> None:
    config = make_config({"policy": Given("ssp:s=3", "--policy"), "hang_after": Given(1.0, "--hang-after")}, job="j")
    assert (config.policy, config.heartbeat_s, config.given) == (
        "ssp:3",
        0.25,
        {"policy": "--policy", "hang_after": "--hang-after"},
    )
    assert msgspec.json.decode(msgspec.json.encode(config), type=JobConfig) == config


def test_workers_are_not_told_the_secret() -> None:
    assert JobConfig(job="j", token="secret").public == JobConfig(job="j")


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/b", ".x", "a b", "a:b", "é", "x" * 65, "a\n", "\0"])
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    """Jobs name sockets and the files of traces."""
    with pytest.raises(
        UsageError, match=r"^--job must be of letters, digits, dots, dashes and underscores, at most 64"
    ):
        JobConfig(job=name, given={"job": "--job"})
    with pytest.raises(UsageError, match=r"^JOB must be of letters"):
        steer.at(name)
    with pytest.raises(UsageError, match=r"^the job's name, of TORCHELASTIC_RUN_ID, .* must be of letters"):
        job_of({"TORCHELASTIC_RUN_ID": name, "MASTER_PORT": "1"})


@pytest.mark.parametrize("name", ["fruit", "a.b-c_d", "x" * 64, "-", "7"])
def test_other_names_are_taken(name: str) -> None:
    assert JobConfig(job=name).job == name
    assert steer.at(name).job == name
