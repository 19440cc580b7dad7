"""Start the process that follows a job and shows it: the live page, metrics, files of events.

It is a process of its own that asks the coordinator now and then, so nothing that happens to it concerns the job. Its
sockets are opened here, so that a port in use is said before anything starts, and a browser can connect at once.
"""

import importlib.util
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch.nodes import TOKEN
from polyrhythm.runtime.wire.connection import is_loopback
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.parent_death import dies_with_us
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.telemetry.files import check_writable, make_folder

WATCHER = "polyrhythm.live"
"""What runs in the process; it stands above the runtime, which knows it by name only."""

SERVING = ("starlette", "uvicorn", "prometheus_client")

NEEDED = {"ui": ("ui", SERVING), "metrics_port": ("ui", SERVING), "tensorboard": ("rl", ("tensorboard",))}
"""The extra that a setting needs, and its modules."""


class WatchOrder(msgspec.Struct, frozen=True):
    """What to follow, and what to show.

    Args:
        address: of the coordinator.
        key: first part of every path of the page; who does not know it gets nothing.
        token: what others than the job's own user on this host need for its metrics.
        host: where the page listens.
        page: descriptor of the listening socket of the page; None is no page.
        metrics: that of the metrics.
        report: see `JobConfig`.
        events: see `JobConfig`.
        tensorboard: see `JobConfig`.
        trainjob: see `JobConfig`.
    """

    address: Address
    key: str = ""
    token: str = ""
    host: str = "127.0.0.1"
    page: int | None = None
    metrics: int | None = None
    report: str | None = None
    events: str | None = None
    tensorboard: str | None = None
    trainjob: bool = False


class Watch(NamedTuple):
    """The process, and lines that say where it shows what."""

    process: "subprocess.Popen[bytes]"
    lines: tuple[str, ...]


def start_watch(config: JobConfig) -> Watch | None:
    """Start following a job whose coordinator is on this host; None if nobody wants that."""
    if not config.watched:
        return None
    secret = secrets.token_urlsafe(16)
    token = os.environ.get(TOKEN) or secret
    order = WatchOrder(
        Address(coordinator_address(config.job), config.job, config.token),
        secret if is_loopback(config.ui_host) else token,
        token,
        config.ui_host,
        report=config.report,
        events=config.events,
        tensorboard=config.tensorboard,
        trainjob=config.trainjob,
    )
    with ExitStack() as stack:
        page = stack.enter_context(open_port(config, "ui_port")) if config.ui else None
        metrics = stack.enter_context(open_port(config, "metrics_port")) if config.metrics_port is not None else None
        opened = msgspec.structs.replace(order, page=page and page.fileno(), metrics=metrics and metrics.fileno())
        process = spawn(opened, [sock.fileno() for sock in (page, metrics) if sock is not None])
        return Watch(process, tuple(where(config, order.key, page, metrics)))


TRAINJOB_URL = "KUBEFLOW_TRAINER_STATUS_URL"
"""Variable that Kubeflow's controller sets where a TrainJob may be told how far it is."""

UNATTENDED = ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "CI")
"""Variables of places where nobody sits at the terminal."""


def with_defaults(config: JobConfig, environment: Mapping[str, str], terminal: bool) -> JobConfig:
    """The config with what is shown unless somebody has said otherwise.

    Args:
        config: of the job.
        environment: of this process.
        terminal: whether somebody sees what it prints.

    >>> with_defaults(JobConfig(), {}, True).ui, with_defaults(JobConfig(), {"SLURM_JOB_ID": "7"}, True).ui
    (True, False)
    """
    attended = terminal and not any(environment.get(name) for name in UNATTENDED)
    can = is_loopback(config.ui_host) and not missing_modules("ui")
    ui = config.ui if "ui" in config.given else attended and can
    return msgspec.structs.replace(config, ui=ui, trainjob=bool(environment.get(TRAINJOB_URL)))


def missing_modules(setting: str) -> list[str]:
    return [module for module in NEEDED[setting][1] if importlib.util.find_spec(module) is None]


def check_watch(config: JobConfig) -> None:
    """What is watched can be: to be called before any process starts."""
    for name, (extra, _) in NEEDED.items():
        wanted = getattr(config, name) is not None and getattr(config, name) is not False  # 0 is a port
        if wanted and (missing := missing_modules(name)):
            raise UsageError(
                f"{config.label(name)} needs {', '.join(missing)}; install with: pip install 'polyrhythm[{extra}]'"
            )
    if not is_loopback(config.ui_host) and not re.fullmatch(r"[\w.~-]+", os.environ.get(TOKEN, ""), re.ASCII):
        raise UsageError(
            f"{config.label('ui_host')} {config.ui_host} can be reached from other hosts; set {TOKEN} to a secret of "
            "letters and digits, such as that of openssl rand -hex 16: it is then part of the page's address"
        )


def check_outputs(config: JobConfig) -> None:
    """What the first host writes can be written: to be called before any process starts."""
    for name in ("report", "events"):
        if path := getattr(config, name):
            check_writable(config.label(name), Path(path))
    for name in ("tensorboard", "trace", "checkpoint"):
        if path := getattr(config, name):
            make_folder(config.label(name), Path(path))


def open_port(config: JobConfig, name: str) -> socket.socket:
    """A listening socket."""
    port = getattr(config, name)
    try:
        return socket.create_server((config.ui_host, port), backlog=64)
    except OSError as error:
        raise UsageError(
            f"{config.label(name)} {port} on {config.ui_host} cannot be used: {error.strerror}; "
            "choose another port, or 0 for any that is free"
        ) from None


def spawn(order: WatchOrder, descriptors: Sequence[int]) -> "subprocess.Popen[bytes]":
    """The process; the order comes on standard input, because a command line can be read by anybody."""
    command = [sys.executable, "-m", WATCHER]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, pass_fds=descriptors, preexec_fn=dies_with_us(), start_new_session=True
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(order))
    process.stdin.close()
    return process


def where(config: JobConfig, key: str, page: socket.socket | None, metrics: socket.socket | None) -> list[str]:
    """A line for each place to look at. A key that is the job's token is not shown."""
    lines = []
    if page is not None:
        shown = key if is_loopback(config.ui_host) else f"${TOKEN}"
        lines.append(f"page of job {config.job}: http://{config.ui_host}:{page.getsockname()[1]}/{shown}/")
    if metrics is not None:
        lines.append(f"metrics of job {config.job}: http://{config.ui_host}:{metrics.getsockname()[1]}/metrics")
    return lines
