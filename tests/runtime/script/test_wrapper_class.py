"""A script's wrapper has the class that the script gave it, and classes of the script's own are followed as well."""

import functools
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from polyrhythm.errors import RefusalError
from polyrhythm.runtime.script import wrapper_class
from tests.runtime.script.runs import Run, adapted, plain, try_adapted
from tests.runtime.script.test_refusals import line_of


def ends(run: Run) -> list[str]:
    """What each rank has seen of its wrapper, and the weights."""
    return [(run.folder / f"end.{rank}").read_text("utf-8") for rank in run.ranks]


@pytest.mark.parametrize("kind", ["torch", "forwarding"])
def test_it_looks_as_under_torchrun_and_trains_its_bits(tmp_path: Path, kind: str) -> None:
    ours = adapted(tmp_path / "ours", "classes.py", kind, stand_in=False)
    theirs = plain(tmp_path / "theirs", "classes.py", kind, stand_in=False)
    assert ends(ours) == ends(theirs)
    for rank in ours.ranks:
        assert b"polyrhythm" not in (ours.folder / f"whole.{rank}").read_bytes()


@pytest.mark.parametrize("kind", ["torch", "forwarding"])
def test_it_follows_other_policies(tmp_path: Path, kind: str) -> None:
    run = adapted(tmp_path, "classes.py", kind, policy="local:h=2", stand_in=False)
    assert len({end.splitlines()[-1] for end in ends(run)}) == 1
    assert run.stderr().count("DistributedDataParallel follows the policy") == 1


def test_torch_reads_and_trains_a_whole_one_that_a_script_has_saved(tmp_path: Path) -> None:
    adapted(tmp_path / "ours", "classes.py", "torch", stand_in=False)
    plain(tmp_path / "theirs", "classes.py", "torch", stand_in=False)
    read = [
        ends(plain(tmp_path / f"read {whose}", "classes.py", "read", str(tmp_path / whose / "whole"), stand_in=False))
        for whose in ("ours", "theirs")
    ]
    assert read[0] == read[1]


REFUSED = {
    "calling": "Calling replaces forward of DistributedDataParallel, whose exchange follows",
    "preparing": "Preparing uses reducer of DistributedDataParallel, whose exchange follows",
    "forwarding group": "DistributedDataParallel with a process_group of its own; leave it out",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_class_that_takes_part_in_the_exchange_is_refused_at_its_constructor(tmp_path: Path, kind: str) -> None:
    run = try_adapted(tmp_path, "classes.py", kind, stand_in=False)
    assert run.codes == [2, 2], run.stderr()
    assert REFUSED[kind] in run.stderr()
    line = {"forwarding group": "super().__init__("}.get(kind, "return kind(net)")
    assert f"classes.py:{line_of(line, 'classes.py')}: " in run.stderr().splitlines()[-1]


class Hiding(DistributedDataParallel):
    """Uses torch's machinery where its methods do not show it."""

    @property
    def hidden(self) -> Any:
        return self.reducer

    @functools.cached_property
    def kept(self) -> Any:
        return self.reducer

    @torch.no_grad()
    def decorated(self) -> None:
        self._sync_buffers()  # type: ignore[no-untyped-call]

    def within(self) -> Any:
        return [each for each in (self,) if each.reducer]


@pytest.mark.parametrize("name", ["hidden", "kept", "decorated", "within"])
def test_code_within_a_property_or_a_function_is_looked_at(name: str) -> None:
    own = type("Own", (DistributedDataParallel,), {name: vars(Hiding)[name]})
    with pytest.raises(RefusalError, match=r"Own uses (reducer|_sync_buffers) of DistributedDataParallel"):
        wrapper_class.check_class(own)


def test_what_a_method_is_written_around_may_be_torchs_own() -> None:
    """`functools.wraps` of torch's constructor names that, and a derived class may call it."""

    class Own(DistributedDataParallel):
        @functools.wraps(DistributedDataParallel.__init__)  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    wrapper_class.check_class(Own)


def test_a_process_that_only_imports_us_has_the_class_of_torch() -> None:
    functions = [value for value in vars(DistributedDataParallel).values() if isinstance(value, FunctionType)]
    assert wrapper_class.patch_wrapper.__code__.co_filename not in {each.__code__.co_filename for each in functions}
    assert "__getattr__" not in vars(DistributedDataParallel)
