import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyrhythm.doctor.culprits import culprits
from polyrhythm.doctor.readers import kineto
from polyrhythm.doctor.readers.kineto import read_kineto
from polyrhythm.errors import TraceError
from tests.doctor.jobs import EXCHANGE_S, drawn
from tests.runtime.script.runs import plain

ROOT = Path(__file__).parents[3]
OPTIMIZER_S, LOADING_S = 0.001, 0.002


def event(name: str, start_s: float, end_s: float) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": 1e6 * start_s, "dur": 1e6 * (end_s - start_s)}


def events(own_s: np.ndarray, rank: int, shift_s: float, steps: bool) -> list[dict[str, Any]]:
    """What torch.profiler sees of a loop whose gradients travel in two buckets, the first of them beside the pass."""
    end_s, made = shift_s, []
    for step in range(own_s.shape[1]):
        begin_s, there_s = end_s, end_s + own_s[rank, step]
        end_s += own_s[:, step].max() + EXCHANGE_S
        half_s = (begin_s + there_s) / 2
        made += [
            event(
                "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
                begin_s + OPTIMIZER_S,
                begin_s + LOADING_S,
            ),
            event("DistributedDataParallel.forward", begin_s + LOADING_S, half_s),
            event("autograd::engine::evaluate_function: AddmmBackward0", half_s, there_s),
            event("c10d::allreduce_", (half_s + there_s) / 2, (half_s + there_s) / 2 + 1e-5),
            event("gloo:all_reduce", (half_s + there_s) / 2, end_s - EXCHANGE_S / 2),
            event("c10d::allreduce_", there_s, there_s + 1e-5),
            event("gloo:all_reduce", there_s, end_s),
            event("Optimizer.step#SGD.step", end_s, end_s + OPTIMIZER_S),
        ]
        made += [event(f"ProfilerStep#{step + 3}", begin_s + OPTIMIZER_S, end_s + OPTIMIZER_S)] if steps else []
    return made


def written(folder: Path, own_s: np.ndarray, steps: bool = True, packed: bool = False, **shifts_s: float) -> list[Path]:
    paths = []
    for rank in range(len(own_s)):
        value = {
            "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": len(own_s)},
            "host_name": f"host{rank}",
            "traceEvents": [
                {"ph": "M", "name": "process_name", "args": {}},
                *events(own_s, rank, shifts_s.get(f"rank{rank}", 1e6), steps),
            ],
        }
        path = folder / (f"rank{rank}.json" + (".gz" if packed else ""))
        raw = json.dumps(value).encode()
        path.write_bytes(gzip.compress(raw) if packed else raw)
        paths.append(path)
    return paths


@pytest.mark.parametrize("steps", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_what_ranks_did_is_read_back(tmp_path: Path, steps: bool, packed: bool) -> None:
    own_s = drawn(4, 30)
    evidence = read_kineto(written(tmp_path, own_s, steps, packed))
    assert evidence.own_s == pytest.approx(own_s[:, 1:], abs=1e-6)
    assert evidence.communication_s == pytest.approx(np.full((4, 29), EXCHANGE_S), abs=1e-6)
    assert evidence.parts["data loading"] == pytest.approx(np.full((4, 29), LOADING_S - OPTIMIZER_S), abs=1e-6)
    assert evidence.hosts == ("host0", "host1", "host2", "host3")
    assert evidence.step_s.mean() == pytest.approx(evidence.wall_s / 29)


def test_the_culprit_is_who_comes_last_not_whose_collective_is_long(tmp_path: Path) -> None:
    own_s = drawn(4, 60)
    own_s[2] += 0.02
    evidence = read_kineto(written(tmp_path, own_s))
    assert int(evidence.waiting_s.sum(axis=1).argmin()) == 2
    assert [one.rank for one in culprits(evidence)[0]] == [2]


def test_clocks_of_hosts_are_set_by_the_collectives(tmp_path: Path) -> None:
    own_s = drawn(3, 30)
    evidence = read_kineto(written(tmp_path, own_s, rank1=5e5, rank2=3600.0))
    assert np.ptp(evidence.start_s, axis=0).max() < 1e-4


def test_the_overlap_of_backward_and_exchange_is_kept(tmp_path: Path) -> None:
    own_s = np.full((2, 20), 0.02)
    evidence = read_kineto(written(tmp_path, own_s))
    # The first bucket goes at three quarters of the step: 5 ms beside the backward pass, then the exchange of 2 ms.
    assert evidence.overlap == pytest.approx(5 / 7, rel=0.01)


def changed(path: Path, **values: Any) -> None:
    made = {**json.loads(path.read_bytes()), **values}
    path.write_text(json.dumps({key: value for key, value in made.items() if value is not None}), encoding="utf-8")


def test_a_file_may_say_its_rank_in_its_name(tmp_path: Path) -> None:
    paths = written(tmp_path, drawn(2, 10))
    for path in paths:
        changed(path, distributedInfo=None)
    assert read_kineto(paths).ranks == (0, 1)
    with pytest.raises(TraceError, match="does not say its rank"):
        read_kineto([paths[0], paths[1].rename(tmp_path / "other.json")])


def test_files_that_cannot_be_used_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = written(tmp_path, drawn(3, 10))
    with pytest.raises(TraceError, match="the job has 3 ranks, but there is no trace of rank 1; add it"):
        read_kineto([paths[0], paths[2]])
    with pytest.raises(TraceError, match="there are 2 traces of rank 0"):
        read_kineto([*paths, paths[0]])
    changed(paths[1], traceEvents=[event("aten::mm", 0.0, 1.0)])
    with pytest.raises(TraceError, match="has no collective; profile whole steps"):
        read_kineto(paths)
    changed(paths[1], traceEvents=[event("gloo:all_reduce", 0.0, 1.0)])
    with pytest.raises(TraceError, match=r"has no steps; call prof\.step\(\)"):
        read_kineto(paths)
    paths[1].write_bytes(paths[0].read_bytes()[:-200])
    with pytest.raises(TraceError, match=r"is no whole file of torch.profiler: .*; was it cut off\?"):
        read_kineto(paths)
    paths[1].write_bytes(paths[0].read_bytes().replace(b"host0", b"caf\xe9"))
    with pytest.raises(TraceError, match="is no whole file"):
        read_kineto(paths)
    packed = written(tmp_path, drawn(2, 10), packed=True)
    monkeypatch.setattr(kineto, "LARGEST", 1 + max(path.stat().st_size for path in packed))
    for files in (paths, packed):
        with pytest.raises(TraceError, match="GiB; profile fewer steps"):
            read_kineto(files)


def test_a_size_that_no_job_has_is_refused_at_once(tmp_path: Path) -> None:
    paths = written(tmp_path, drawn(2, 10))
    changed(paths[1], distributedInfo={"rank": 1, "world_size": 10**12})
    with pytest.raises(TraceError, match="no trace of rank 2, 3, 4, 5, 6, 7, 8, 9 and more; add it"):
        read_kineto(paths)


def test_copies_on_the_track_of_a_device_change_nothing(tmp_path: Path) -> None:
    """A GPU's track has the script's annotations once more, as late as its queue is long."""
    own_s = drawn(2, 30)
    plain = read_kineto(written(tmp_path, own_s))
    paths = written(tmp_path, own_s)
    for path in paths:
        found = json.loads(path.read_bytes())["traceEvents"]
        named = [one for one in found if one["name"].startswith(("ProfilerStep", "Optimizer", "Distributed", "enum"))]
        copies = [{**one, "cat": "gpu_user_annotation", "ts": one["ts"] + 300} for one in named]
        changed(path, traceEvents=[*found, *copies])
    copied = read_kineto(paths)
    assert {name: times.tolist() for name, times in copied.parts.items()} == {
        name: times.tolist() for name, times in plain.parts.items()
    }
    assert copied.own_s.tolist() == plain.own_s.tolist()


def test_a_packed_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    paths = written(tmp_path, drawn(2, 10), packed=True)
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    with pytest.raises(TraceError, match=r"cannot read .*; was it cut off\?"):
        read_kineto(paths)


def test_traces_of_real_ranks_are_read(tmp_path: Path) -> None:
    """The script for torchrun under torch.profiler; the wall clock is that between its optimizer's steps."""
    script = str(ROOT / "examples/train_ddp.py"), "--epochs", "1", "--repeat", "2"
    plain(tmp_path, str(ROOT / "examples/profiled.py"), str(tmp_path), *script, ranks=4, stand_in=False)
    evidence = read_kineto(sorted(tmp_path.glob("*.json")))
    ends = sorted(
        one["ts"] + one["dur"]
        for one in json.loads((tmp_path / "rank0.json").read_bytes())["traceEvents"]
        if one.get("name", "").startswith("Optimizer.step#")
    )
    assert (evidence.ranks, evidence.steps) == ((0, 1, 2, 3), len(ends) - 1)
    # All ranks leave a step together, but on a busy machine each is late at its own end.
    assert 0.5 < evidence.step_s.mean() / (1e-6 * (ends[-1] - ends[0]) / (len(ends) - 1)) < 2.0
    assert evidence.overlap is not None
    assert 0 < evidence.overlap < 1
