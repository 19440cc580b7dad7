"""Process groups of a script under `polyrhythm run`: ours in place of torch's, on loopback where all is on one host."""

import functools
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from polyrhythm.runtime.launch.gathering import changing_hosts
from polyrhythm.runtime.launch.rendezvous import read_number, store_listener
from polyrhythm.runtime.launch.restarts import asked_for
from polyrhythm.runtime.script.data.alone import SharedStart
from polyrhythm.runtime.script.notices import asked_by_us, refuse, tell
from polyrhythm.runtime.script.script import AdaptedScript
from polyrhythm.runtime.script.script_group import BACKEND, ScriptGroup, remind_while_waiting
from polyrhythm.runtime.wire.tls.cover import covered


def patch_store() -> None:
    """The store of ranks that are all on this host listens on loopback: it asks nobody who he is."""
    module: Any = import_module("torch.distributed.rendezvous")  # its name in the package is a function's
    original = module.TCPStore

    @functools.wraps(original)
    def make(host_name: str, port: int, world_size: int | None = None, is_master: bool = False, **more: Any) -> Any:
        here = read_number("WORLD_SIZE", 1) <= read_number("LOCAL_WORLD_SIZE", 1)
        if is_master and here and (listener := store_listener(host_name, port)):
            more["master_listen_fd"] = listener.detach()
        return original(host_name, port, world_size, is_master, **more)

    module.TCPStore = make


def patch_groups(script: AdaptedScript, start: SharedStart) -> None:
    """The script's default group is one whose members can change; the session ends before it does."""
    ScriptGroup.alone, ScriptGroup.launched = staticmethod(script.collective), staticmethod(launch_listener(script))
    ScriptGroup.messaged = staticmethod(script.stalls.messaged)
    ScriptGroup.lives_on = staticmethod(lambda: script.is_handed_data)
    names = dict[str, str]()
    replaced = {
        "init_process_group": beginning(script, start, names),
        "destroy_process_group": ending(script),
        "get_backend": naming(names),
        "new_group": further_group(names),
    }
    for module in (dist, distributed_c10d):
        vars(module).update(replaced)


def launch_listener(script: AdaptedScript) -> Callable[[dist.Work, bool], None]:
    """What is told of each collective that the script has launched, and whether it is one for all workers."""

    def launched(work: dist.Work, for_all: bool) -> None:
        if for_all:
            script.stalls.launched(work)
        if script.session is None or script.aside:
            return
        if for_all:
            script.session.collective()
        if not script.session.aligned:
            look = script.pass_epoch_if_awaited if for_all else lambda: None
            remind_while_waiting(work, look, functools.partial(script.session.wait_outside, for_all))

    return launched


def beginning(script: AdaptedScript, start: SharedStart, names: dict[str, str]) -> Callable[..., None]:
    """`init_process_group`, which keeps in `names` what the script calls the backend."""
    original = dist.init_process_group

    @functools.wraps(original)
    def init(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        if not asked_by_us():
            refuse_restarts()
            refuse_uncovered()
        if script.dormant or asked_by_us():
            original(backend, *args, **kwargs)
            return
        script.formed_group()
        kwargs.pop("device_id", None)
        names_given = ("init_method", "timeout", "world_size", "rank", "store", "group_name", "pg_options")
        given = {**dict(zip(names_given, args, strict=False)), **kwargs}
        original(BACKEND, **script.children.meeting(given))
        names[BACKEND] = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        start.part()
        tell(f"process group of {dist.get_world_size()} workers")

    return init


def ending(script: AdaptedScript) -> Callable[..., None]:
    original = dist.destroy_process_group

    @functools.wraps(original)
    def destroy(group: Any = None) -> None:
        if group in (None, dist.group.WORLD):
            script.close()
        original(group)

    return destroy


def naming(names: dict[str, str]) -> Callable[..., str]:
    """`get_backend`, in the script's words."""
    original = dist.get_backend

    @functools.wraps(original)
    def get_backend(group: Any = None) -> str:
        found = original(group)
        return getattr(group, "asked_backend", None) or names.get(found, found)

    return get_backend


def further_group(names: dict[str, str]) -> Callable[..., Any]:
    """`new_group`: of our backend whatever the script asks for, which it is told that it has."""
    original = dist.new_group

    @functools.wraps(original)
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        ours = BACKEND in names and not asked_by_us()
        made = original(ranks, timeout, None if ours else backend, *args, **kwargs)
        if ours and isinstance(made, ScriptGroup):
            made.asked_backend = backend and backend.lower()
        return made

    return new_group


def refuse_restarts() -> None:
    """The process group is formed once, by all ranks: one that was started again would wait in it for ever."""
    if restarts := asked_for(os.environ):
        raise refuse(
            f"--max-restarts {restarts} (or PET_MAX_RESTARTS), and init_process_group forms a group that a worker "
            "cannot join again; leave one of them out: a script with polyrhythm.session needs no group"
        )
    if hosts := changing_hosts():
        raise refuse(
            f"--nnodes {hosts}, and init_process_group forms a group of all ranks, for good; give one "
            "number, or use polyrhythm.session without a group"
        )


def refuse_uncovered() -> None:
    """What a script's group sends goes from worker to worker in the clear."""
    if covered():
        raise refuse(
            "init_process_group forms a group over gloo or NCCL, which TLS does not cover; use polyrhythm.session "
            "without a group, or a VPN in place of --tls-ca"
        )
