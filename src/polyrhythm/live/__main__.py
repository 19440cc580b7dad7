"""The process that follows a job: it reads its order on standard input, and ends after the job."""

import asyncio
import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from polyrhythm.lines import say
from polyrhythm.live.event_log import EventLog
from polyrhythm.live.pages import saved_page
from polyrhythm.live.reader import Reader, Sink
from polyrhythm.runtime.launch.watch import WatchOrder
from polyrhythm.telemetry.files import write_whole

LINGER_S = 1.5
"""How long pages can still be asked for after the job: three looks of a page that is open."""

MOST_REQUESTS = 32
"""Connections at a time; more are refused."""


def sinks(order: WatchOrder) -> Iterator[Sink]:
    if order.events is not None:
        yield EventLog(order.events)
    if order.trainjob:
        from polyrhythm.live.kubeflow import TrainJobStatus

        yield TrainJobStatus()
    if order.tensorboard is not None:
        from polyrhythm.live.tensorboard import TensorBoardLog

        yield TensorBoardLog(order.tensorboard)


async def follow(order: WatchOrder) -> None:
    """Show the job until it has ended, or until this process is asked to stop."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    reader = Reader(order.address, tuple(sinks(order)), ended=partial(loop.call_soon_threadsafe, over.set))
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    reader.start()
    async with asyncio.TaskGroup() as group:
        servers = serve(reader, order, group)
        ending = [asyncio.ensure_future(event.wait()) for event in (over, stopped)]
        await asyncio.wait(ending, return_when=asyncio.FIRST_COMPLETED)
        keep(reader, order)
        if order.page is not None and not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LINGER_S)
        for each in (*servers, *ending):
            each.cancel()


def quiet(problem: threading.ExceptHookArgs) -> None:
    """A thread of TensorBoard's writer cannot write, which `TensorBoardLog` says in one line."""
    if not issubclass(problem.exc_type, OSError):
        threading.__excepthook__(problem)


def serve(reader: Reader, order: WatchOrder, group: asyncio.TaskGroup) -> "list[asyncio.Task[None]]":
    """Answer on the sockets that the launcher has opened."""
    if order.page is None and order.metrics is None:
        return []
    from polyrhythm.live.app import metrics_app, page_app
    from polyrhythm.live.serving import answer

    apps = []
    if order.page is not None:
        apps.append((page_app(reader, order.address, order.key, order.host), order.page))
    if order.metrics is not None:
        apps.append((metrics_app(reader, order.token, order.host), order.metrics))
    return [group.create_task(answer(app, socket.socket(fileno=number), MOST_REQUESTS)) for app, number in apps]


def keep(reader: Reader, order: WatchOrder) -> None:
    """The page as it is now, if it is to be kept."""
    if order.report is None:
        return
    try:
        write_whole(Path(order.report), saved_page(order.address.job, *reader.after(0)).encode())
    except OSError as error:
        say(f"cannot write --report {order.report}: {error.strerror}")


if __name__ == "__main__":
    threading.excepthook = quiet
    asyncio.run(follow(msgspec.json.decode(sys.stdin.buffer.read(), type=WatchOrder)))
