"""The job file: keys as the flags, policies as tables, and one line for what is wrong."""

from pathlib import Path

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch.job_file import read_job_file
from polyrhythm.runtime.launch.torchrun import read_command


def file(folder: Path, text: str) -> str:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_dashes_and_underscores_are_one_name(tmp_path: Path) -> None:
    text = "nproc-per-node = 3\non_divergence = 'end'\nhang-after = 5\nfull-duplex = true\nrdzv_id = 'x'\nrole = 'a'\n"
    assert read_job_file(file(tmp_path, text)) == {
        "nproc_per_node": "3",
        "on_divergence": "end",
        "hang_after": 5.0,
        "full_duplex": True,
        "rdzv_id": "x",
        "role": "a",
    }
    plan = read_command(["--config", file(tmp_path, text), "train.py"])
    assert (plan.processes, plan.config.on_divergence, plan.config.hang_after) == (3, "end", 5.0)


@pytest.mark.parametrize(
    ("table", "spec"),
    [
        ("policy = 'ssp:3'", "ssp:3"),
        ("policy = {name = 'ssp', s = 3}", "ssp:3"),
        ("[policy]\nname = 'selsync'\ndelta = 0.3\n", "selsync:delta=0.3"),
        ("[policy]\nname = 'esync'\nblocking = false\n", "esync:blocking=false"),
        ("[policy]\nname = 'switch'\nparts = ['bsp@0.25', {name = 'ssp', s = 3, share = 0.5}, 'asp']", None),
        ("[policy]\nname = 'tuned'\nmomentum = 'zero'\npolicy = {name = 'ssp', s = 3}", None),
    ],
)
def test_a_policy_is_a_spec_or_a_table(table: str, spec: str | None, tmp_path: Path) -> None:
    found = read_job_file(file(tmp_path, table))["policy"]
    wanted = (
        spec
        or {
            "switch": "switch:bsp@0.25,(ssp:3)@0.5,asp",
            "tuned": "tuned:(ssp:3),momentum=zero",
        }[found.partition(":")[0]]
    )
    assert parse_policy(found) == parse_policy(wanted)


WRONG = {
    "polcy = 'asp'": "unknown key 'polcy': did you mean policy?",
    "nproc-per-nod = 2": "unknown key 'nproc-per-nod': did you mean nproc-per-node?",
    "token = 'x'": "job.toml: the token is a secret and no key; set POLYRHYTHM_TOKEN in the environment",
    "nproc = 2": "unknown key 'nproc': did you mean nproc-per-node?",
    "[training]\nepochs = 3": "unknown key 'training': ",
    "shards = 'two'": "shards in .*job.toml must be a whole number but got 'two'",
    "shards = 0": "shards in .*job.toml must be at least 1 but got 0",
    "search = 3": "search in .*job.toml must be true or false but got 3",
    "data = 'x'": "data in .*job.toml must be a list of texts but got 'x'",
    "policy = 3": "policy in .*job.toml must be a text but got 3",
    "policy = {s = 3}": "policy in .*job.toml is a table without a name; give it one",
    "policy = {name = 'spp'}": "policy in .*job.toml: unknown policy 'spp': did you mean ssp?",
    "policy = {name = 'ssp', t = 3}": "policy in .*job.toml: ssp has no parameter 't'",
    "policy = {name = 'switch', parts = []}": "policy in .*job.toml: parts of switch is an empty list; name a policy",
    "policy = {name = 'dssp', s_high = [1]}": "policy in .*job.toml: s_high of dssp must be one value but got \\[1\\]$",
    "policy = {name = 'ssp', s = 'x'}": "policy in .*job.toml: policy 'ssp:s=x': s must be a number but got 'x'",
    "policy = 'ssp:x'": "^policy in .*job.toml: policy 'ssp:x': s must be a number but got 'x'$",
    "compress = 'topk:9'": "^compress in .*job.toml: compression topk needs a share",
    "compensation = 'x'": "^compensation in .*job.toml: unknown compensation 'x'",
    "nnodes = 'x'": "^nnodes in .*job.toml must be a number of hosts of at least 1, or MIN:MAX, but got 'x'$",
    "nproc-per-node = 'x'": "^nproc-per-node in .*job.toml must be a number of at least 1, auto, cpu or gpu but got",
    "nproc-per-node = 2.5": "^nproc-per-node in .*job.toml must be a number of at least 1, .* but got '2.5'",
    "nproc-per-node = true": "^nproc-per-node in .*job.toml must be a number of at least 1, .* but got 'true'",
    "nnodes = 1.5": "^nnodes in .*job.toml must be a number of hosts of at least 1, or MIN:MAX, but got '1.5'",
    "every = -0.5": "^every in .*job.toml must be a duration of more than 0 seconds, .* but got '-0.5'",
    "nproc-per-node = 99999": "^nproc-per-node in .*job.toml 99999 is more than ",
    "node-rank = 3": "^node-rank in .*job.toml must be from 0 to 0 with --nnodes 1, not 3$",
    "rdzv-backend = 'x'": "^rdzv-backend in .*job.toml x is not known here",
    "on-divergence = 'end'\non_divergence = 'end'": "gives on-divergence twice; leave one out",
    "policy = ": "job file .*job.toml is not TOML: ",
    "when = 2026-99-99": "job file .*job.toml is not TOML: ",
    "job = " + "[" * 5000 + "]" * 5000: "job file .*job.toml is not TOML: it is nested too deeply",
    "policy = "
    + "{name = 'tuned', policy = " * 3000
    + "'asp'"
    + "}" * 3000: "job file .*job.toml is not TOML: it is nested too deeply",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: text[:30])
def test_a_wrong_file_is_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(PolyrhythmError, match=WRONG[text]) as caught:
        read_command(["--config", file(tmp_path, text), "train.py"])
    assert "\n" not in str(caught.value)


def test_a_mark_of_the_byte_order_is_no_mistake(tmp_path: Path) -> None:
    assert read_job_file(file(tmp_path, "\ufeffpolicy = 'asp'")) == {"policy": "asp"}


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PolyrhythmError, match=r"^cannot read job file .*none.toml: No such file or directory; check"):
        read_job_file(str(tmp_path / "none.toml"))
    with pytest.raises(PolyrhythmError, match=r"cannot read job file .*: Is a directory"):
        read_job_file(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolyrhythmError, match="is no text in UTF-8"):
        read_job_file(str(tmp_path / "binary"))
