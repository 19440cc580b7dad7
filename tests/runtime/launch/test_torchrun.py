"""``polyrhythm run`` as a user starts it: switches from outside, workers that fail, and nothing left behind."""

import re
import signal
import socket
from pathlib import Path

import pytest
import torch

from polyrhythm.core import Trace, replay
from polyrhythm.errors import REFUSED, PolyrhythmError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch.control_client import jobs_here
from polyrhythm.runtime.launch.run_flags import make_parser
from polyrhythm.runtime.launch.torchrun import check_package, launch, read_command, worker_environment
from tests import wrong_policies
from tests.ends import await_ends
from tests.runtime.places import LIMIT_S, Place

STEERED = """
answers = []
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(2):
        for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
            if rank == 0 and (epoch, number) == (0, 2):
                job = os.environ["TORCHELASTIC_RUN_ID"]
                answers.append(call("ctl", job, "switch", "asp"))
                answers.append(call("ctl", job, "switch", "apx"))
                answers.append(call("ctl", "nobody"))
                answers.append(call("run", "--job", job, sys.argv[0]))
            step(x, y)
    if rank == 0:
        print(session.policy, session.metrics["phase"], *answers, sep="\\n")
"""

ABSENT = """
if rank == 1:
    sys.exit("no such device")
with polyrhythm.session(model, optimizer) as session:
    for x, y in session.loader(data, batch_size=2):
        step(x, y)
    print("samples", session.metrics["samples"])
"""

PLAIN = """
with polyrhythm.session(model, optimizer) as session:
    for x, y in session.loader(data, batch_size=2):
        step(x, y)
"""

DIVERGING = """
with polyrhythm.session(model, optimizer) as session:
    for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
        step(x * float("nan") if number == 2 else x, y)
"""

GROUPED = """
import contextlib
import socket
import torch.distributed as dist

if rank == 0:
    with socket.socket() as thief:
        try:
            thief.bind(("", int(os.environ["MASTER_PORT"])))
            print("taken")
        except OSError:
            print("kept")
with contextlib.suppress(FileExistsError):
    os.mkfifo("destroyed")
for _ in range(2):
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    dist.destroy_process_group()
    # Rank 1 must not join the store that rank 0 has yet to close: torch waits for it in vain.
    if os.environ["WORLD_SIZE"] == "2":
        with open("destroyed", "r" if rank else "w") as fifo:
            fifo.read() if rank else fifo.write("yes")
    if rank == 0:
        print(int(ones))
if rank == 0:
    print(os.environ["MASTER_PORT"])
"""

ORPHANED = """
if rank == 1:
    open("pid", "w").write(str(os.getpid()))
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(10**6):
        for number, (x, y) in enumerate(session.loader(data, batch_size=2, num_workers=1)):
            if rank == 0 and (epoch, number) == (1, 0):
                if sys.argv[2:]:
                    os.kill(int(open("pid").read()), signal.SIGSTOP)
                os.unlink("pid")
                os.kill(os.getppid(), signal.Signals[sys.argv[1]])
            step(x, y)
"""


def test_a_job_is_switched_and_asked_from_outside(place: Place) -> None:
    traces = place.folder / "traces"
    flags = ("--nproc-per-node", "2", "--policy", "bsp", "--job", f"t{place.mark}", "--trace", str(traces))
    done = place.run(STEERED, *flags)
    assert done.returncode == 0, done.stderr
    policy, phase, switched, unknown, nobody, second = done.stdout.splitlines()
    assert (policy, phase) == ("asp", "2")
    assert "samples" in switched
    assert switched.startswith("(0,")
    assert "did you mean asp?" in unknown
    assert "no job 'nobody' runs on this host: known: " in nobody
    assert f"t{place.mark}" in nobody
    assert "the name is in use; is a job with the same id running?" in second
    assert not any(answer.startswith("(0,") for answer in (unknown, nobody, second))
    phases = [Trace.load(path) for path in sorted(traces.iterdir())]
    assert [trace.header.policy for trace in phases] == ["bsp", "asp"]
    assert all(replayed(trace) for trace in phases)
    assert place.files() == []
    assert list(place.processes()) == []


def replayed(trace: Trace) -> bool:
    return len(list(replay(parse_policy(trace.header.policy), trace))) == len(trace.entries)


def test_nobody_waits_for_a_worker_that_never_joins(place: Place) -> None:
    done = place.run(ABSENT, "--nproc-per-node", "2")
    assert (done.returncode, done.stdout) == (1, "samples 40\n"), done.stderr
    assert "no such device" in done.stderr
    assert "polyrhythm: rank 1 failed with exit code 1; 1 worker goes on" in done.stderr
    assert "rank 1 has not joined; going on without it" in done.stderr


def test_a_job_that_diverges_ends_with_a_status_of_its_own(place: Place) -> None:
    done = place.run(DIVERGING, "--nproc-per-node", "1", "--on-divergence", "end")
    assert done.returncode == 3, done.stderr
    assert "polyrhythm: rank 0: the loss of rank 0 is nan: diverged after 4 samples" in done.stderr


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_a_loss_that_is_no_number_is_said_once_without_a_rule(place: Place, policy: str) -> None:
    done = place.run(DIVERGING, "--nproc-per-node", "2", "--policy", policy)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if " is nan" in line]
    assert len(said) == 1, done.stderr
    assert re.search(r"coordinator: the loss of rank [01] is nan in its step \d+, and the others", said[0])
    assert "--on-divergence end" in said[0]


@pytest.mark.parametrize("name", ["Raises", "RaisesByTheClock", "StartsBadly"])
def test_a_wrong_policy_ends_the_job_with_one_line(place: Place, name: str) -> None:
    """Whether the coordinator or every rank runs it."""
    spec = f"{wrong_policies.__file__}:{name}"
    done = place.run(PLAIN, "--nproc-per-node", "2", "--policy", spec)
    assert done.returncode == 1, done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("polyrhythm")]  # torch may add its frames
    said = [line for line in ours if "; to switch: " not in line and "phase 1: policy" not in line]
    assert [line.startswith(f"polyrhythm coordinator: policy {spec}") for line in said] == [True], done.stderr
    assert "Traceback" not in done.stderr
    assert list(place.processes()) == []


def test_nobody_gets_the_port_of_the_process_group_before_it(place: Place) -> None:
    done = place.run(GROUPED, "--nproc-per-node", "2")
    assert (done.returncode, done.stdout.splitlines()[:3]) == (0, ["kept", "2", "2"]), done.stderr


def test_a_port_that_is_given_is_used_or_refused(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = place.run(GROUPED, "--nproc-per-node", "1", "--master-port", port)
    assert refused.returncode not in (0, None)
    assert f"port {port} is needed for the store of the workers' process group: Address" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = place.run(GROUPED, "--nproc-per-node", "1", "--master-port", port)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["kept", "1", "1", port]), done.stderr


@pytest.mark.parametrize(
    ("how", "status"),
    [("SIGKILL", -signal.SIGKILL), ("SIGKILL stopped", -signal.SIGKILL), ("SIGINT", 128 + signal.SIGINT)],
)
def test_nothing_outlives_the_launcher(place: Place, how: str, status: int) -> None:
    done = place.run(ORPHANED, "--nproc-per-node", "2", "--policy", "asp", arguments=how.split())
    assert done.returncode == status, done.stderr
    while pids := list(place.processes()):  # and what they have started meanwhile
        assert await_ends(pids, LIMIT_S)
    assert place.files() == []


WRONG = {
    ("--policy", "spp:3", "a.py"): "unknown policy 'spp': did you mean ssp?",
    ("--nproc-per-node", "none", "a.py"): "--nproc-per-node must be a number of at least 1",
    ("--nproc-per-node", "0", "a.py"): "--nproc-per-node must be a number of at least 1",
    ("--nnodes", "4:1", "a.py"): "--nnodes must be a number of hosts of at least 1, or MIN:MAX, but got '4:1'",
    ("--nnodes", "2", "a.py"): "--rdzv-endpoint must be HOST or HOST:PORT of host 0",
    (
        "--nnodes",
        "2",
        "--rdzv-endpoint",
        "no.such.host.invalid",
        "a.py",
    ): "host 'no.such.host.invalid', which cannot be",
    ("--nnodes", "2", "--rdzv-endpoint", "10.0.0.1:29400", "a.py"): "set POLYRHYTHM_TOKEN to the same value on each",
    ("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1", "a.py"): "set POLYRHYTHM_TOKEN to the same value on each",
    ("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1", "--node-rank", "2", "a.py"): "--node-rank must be from 0 to 1",
    ("--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:x", "a.py"): "is '127.0.0.1:x'",
    ("--nnodes", "2", "--rdzv-backend", "etcd", "a.py"): "--rdzv-backend etcd is not known here; leave it out",
    ("--rdzv-backend", "etcd", "a.py"): "--rdzv-backend etcd is not known here; leave it out",
    ("--node-rank", "5", "a.py"): "--node-rank must be from 0 to 0 with --nnodes 1, not 5",
    ("--standalone", "--nnodes", "2", "a.py"): "--standalone is for one host, and --nnodes 2 for several; leave",
    ("--nnodes", "2", "--rdzv-id", "a", "--job", "b", "a.py"): "--rdzv-id a and --job b are two ids of one job",
    ("--rdzv-id", "a", "--job", "b", "a.py"): "--rdzv-id a and --job b are two ids of one job",
    ("--rdzv-id", "a/b", "a.py"): "--rdzv-id must be",
    ("--master-port", "99999", "a.py"): "--master-port must be from 0 to 65535 but got 99999",
    ("--tee", "3", "a.py"): "--tee 3 has no meaning here: what workers print comes out here as it is; leave it out",
    ("--log-dir", "logs", "a.py"): "--log-dir logs has no meaning here",
    ("--virtual-local-rank", "a.py"): "--virtual-local-rank has no meaning here",
    ("--shards", "1000000", "a.py"): "--shards 1000000 is more than 32 processes for each of",
    ("--nproc-per-node", "1000000", "a.py"): "--nproc-per-node 1000000 is more than 32 processes for each of",
    ("--shards", "0", "a.py"): "--shards must be at least 1 but got 0",
    ("--hang-after", "0", "a.py"): "--hang-after must be more than 0 seconds but got 0",
    ("--hang-after", "inf", "a.py"): "--hang-after must be at most 604800 s, which is 7 days, but got inf",
    ("--grace", "1e99", "a.py"): "--grace must be at most 604800 s, which is 7 days, but got 1e\\+99",
    (
        "--every",
        "9999h",
        "--checkpoint",
        "c",
        "a.py",
    ): "--every must be at most 604800 s, which is 7 days, but got '9",
    ("--checkpoint", "", "a.py"): "--checkpoint has no value; give one or leave it out",
    ("--policy=", "a.py"): "--policy has no value; give one or leave it out",
    ("--delta-rate", "nan", "a.py"): "--delta-rate must be positive and finite but got nan",
    ("--compensation", "dc", "a.py"): "compensation",
    ("--compensation", "dc-asgd", "--full-duplex", "a.py"): "--full-duplex and --compensation dc-asgd exclude each",
    ("--policy", "asp"): "no script given",
    ("--polcy", "asp", "a.py"): "unknown flag --polcy: did you mean --policy\\?",
    ("--tls", "x", "a.py"): "ambiguous option: --tls could match --tls-cert, --tls-key, --tls-ca",
    ("--tls-ca", "none.pem", "a.py"): "--tls-ca none.pem cannot be used: No such file or directory",
    ("--tls-cert", "none.pem", "a.py"): "--tls-cert, --tls-key and --tls-ca; --tls-key is missing",
    ("--patience", "a.py"): "unknown flag --patience: see polyrhythm run --help",
    ("--zzz", "a.py"): "unknown flag --zzz: see polyrhythm run --help",
    ("--job-family=x", "a.py"): "--job-family goes with --policy sync-switch, and the policy is another one",
    ("--shards", "x", "a.py"): "argument --shards: invalid int value: 'x'; see polyrhythm run --help",
}


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        (("--nproc-per", "3"), "nproc_per_node", "3"),
        (("--nproc_per=3",), "nproc_per_node", "3"),
        (("--check", "kept"), "checkpoint", "kept"),
        (("--max-rest", "2"), "max_restarts", 2),
    ],
)
def test_a_flag_may_be_cut_short_as_under_torchrun(flags: tuple[str, ...], name: str, value: object) -> None:
    plan = read_command([*flags, "train.py", "--check", "script"])
    assert getattr(plan.config, name) == value
    assert plan.command[-3:] == ("train.py", "--check", "script")


def test_each_run_of_a_job_has_a_number_of_its_own() -> None:
    command = ["--job", "fruit", "--master-port", "4001", "train.py"]
    assert read_command(command).config.run != read_command(command).config.run


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_command_line_is_one_clear_line(arguments: tuple[str, ...]) -> None:
    with pytest.raises(PolyrhythmError, match=WRONG[arguments]):
        read_command(arguments)


def test_a_script_that_is_not_there_is_told_before_anything_starts() -> None:
    with pytest.raises(PolyrhythmError, match="cannot find the script nowhere"):
        launch(["nowhere/train.py"])


@pytest.mark.parametrize("module", ["nowhere", "nowhere.train", ".train", "__main__"])
def test_a_module_that_is_not_there_is_told_before_anything_starts(module: str) -> None:
    with pytest.raises(UsageError, match=f"cannot find the module {module}: .* is neither here nor installed"):
        launch(["-m", module])


def test_a_file_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    with pytest.raises(UsageError, match=r"-m train\.py names a file; give the script without -m, or -m train$"):
        launch(["-m", "train.py"])
    Path("sub").mkdir()
    Path("sub/train.py").touch()
    with pytest.raises(UsageError, match=r"give the script without -m, or -m sub\.train$"):
        launch(["-m", "sub/train.py"])


def test_modules_of_this_folder_and_of_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    Path("train").touch()
    check_package("train")
    check_package("torch.distributed.launch")


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    with pytest.raises(PolyrhythmError, match=f"the script {tmp_path} is a folder; name a file in it"):
        launch([str(tmp_path)])


def test_a_host_without_gpus_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(PolyrhythmError, match="--nproc-per-node gpu finds no GPU on this host"):
        read_command(["--nproc-per-node", "gpu", "a.py"])


def test_our_flags_come_first_in_the_help() -> None:
    text = make_parser().format_help()
    assert text.index("flags of polyrhythm") < text.index("--policy SPEC  ") < text.index("flags of torchrun")


def test_the_ranks_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "secret")
    where = ["--nnodes", "3", "--node-rank", "1", "--rdzv-endpoint", "127.0.0.1:4000", "--rdzv-id", "j"]
    plan = read_command([*where, "--nproc-per-node", "2", "a.py"])
    assert (plan.ranks, plan.config.workers, plan.config.job) == (range(2, 4), 6, "j")
    assert plan.coordinator.coordinator == "tcp:127.0.0.1:4000"
    environment = worker_environment(plan.config, plan.processes, 3, 4001, plan.node)
    wanted = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    wanted |= {"ROLE_RANK": "3", "ROLE_WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "3", "TORCHELASTIC_RESTART_COUNT": "0"}
    assert environment.items() >= wanted.items()


def test_workers_know_who_reads_what_before_they_meet_the_coordinator() -> None:
    plan = read_command(["--partition", "seldp", "--nproc-per-node", "2", "train.py"])
    environment = worker_environment(plan.config, plan.processes, 0, 4001, plan.node)
    assert environment["POLYRHYTHM_PARTITION"] == "seldp"
    assert "POLYRHYTHM_INJECTION" not in environment


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_command(["--nproc-per-node", "2", "train.py"])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    environment = worker_environment(plan.config, plan.processes, 0, 4001, plan.node)
    assert (environment["OMP_NUM_THREADS"], environment["MALLOC_MMAP_THRESHOLD_"]) == ("1", "33554432")
    assert "MALLOC_TRIM_THRESHOLD_" not in environment


def test_replicas_are_summed_up_where_the_command_says() -> None:
    plans = [read_command([*flags, "a.py"]) for flags in ([], ["--averaging", "server"])]
    assert [plan.config.averaging for plan in plans] == ["ring", "server"]


def test_the_script_keeps_its_own_flags() -> None:
    plan = read_command(
        ["--nproc_per_node=2", "--standalone", "--policy", "ssp:3", "a.py", "--policy", "x", "--n", "5"]
    )
    assert (plan.processes, plan.config.policy) == (2, "ssp:3")
    assert plan.command[-5:] == ("a.py", "--policy", "x", "--n", "5")
    assert read_command(["-m", "package.train"]).command[-2:] == ("-m", "package.train")


def test_jobs_of_this_host_are_listed() -> None:
    with socket.socket(socket.AF_UNIX) as coordinator:
        coordinator.bind("\0polyrhythm-listed")
        assert "listed" in jobs_here()


@pytest.mark.parametrize(
    ("text", "line"), [("x = (1,\n", "script.py:1: '(' was never closed"), ("if x\n", "expected ':'")]
)
def test_a_script_that_is_no_python_is_one_line_before_anything_starts(text: str, line: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=re.escape(line)):
        read_command([str(script)]).check_script()


def test_a_warning_about_the_script_is_left_to_its_workers(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    script = tmp_path / "script.py"
    script.write_text('pattern = "\\d"\n', encoding="utf-8")
    read_command([str(script)]).check_script()
    assert not recwarn.list


def test_a_second_session_of_a_job_is_refused(place: Place) -> None:
    """Its coordinator ends with the first one: whoever came then met one that was about to."""
    once = """
with polyrhythm.session(model, optimizer) as session:
    for x, y in session.loader(data, batch_size=4):
        step(x, y)
print("trained", rank)
"""
    done = place.run(once + once, "--nproc-per-node", "2", "--policy", "asp")
    assert done.returncode == REFUSED, done.stderr
    assert sorted(done.stdout.splitlines()) == ["trained 0", "trained 1"]
    assert "a second session in job" in done.stderr
    assert "Traceback" not in done.stderr
