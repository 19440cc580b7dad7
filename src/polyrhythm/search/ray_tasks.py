"""Independent trials on a Ray cluster, wherever joblib would run them on the cores of this host.

Each call is a task of Ray. A task whose worker or host is lost is begun anew somewhere else, and the others go on. As
all trials are seeded, the results are those of this host alone.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import joblib
from joblib.parallel import ParallelBackendBase

from polyrhythm.errors import JobError
from polyrhythm.runtime.launch.ray import connected

RETRIES: Final = 3
"""How often a trial is begun anew whose worker was lost."""


class RayTasks(ParallelBackendBase):  # type: ignore[misc]
    """A backend of joblib.

    Args:
        ray: its module, connected to a cluster; see `polyrhythm.runtime.launch.ray.connected`.
        options: of joblib.
    """

    supports_retrieve_callback = True
    default_n_jobs = -1

    def __init__(self, ray: Any, **options: Any) -> None:
        super().__init__(**options)
        self._ray = ray
        self._task = ray.remote(call).options(num_cpus=1, max_retries=RETRIES)
        self._running: set[Any] = set()
        self._threads: ThreadPoolExecutor | None = None

    def configure(self, n_jobs: int | None = None, parallel: Any = None, **options: Any) -> int:
        """Begin with so many tasks at a time; what joblib is told is more than one, as it would run that one here."""
        self.parallel, slots = parallel, self.effective_n_jobs(n_jobs)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="polyrhythm-ray")
        return max(2, slots)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """As many as are asked for; -1 are the cores of the cluster."""
        return n_jobs if n_jobs is not None and n_jobs > 0 else max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None]) -> "Future[Any]":
        assert self._threads is not None, "joblib configures a backend first"
        future = self._threads.submit(self._carry_out, func)
        future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, future: "Future[Any]") -> Any:
        return future.result()

    def terminate(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End what still runs: it is for nobody."""
        self.terminate()
        for reference in list(self._running):
            self._ray.cancel(reference, force=True)

    def _carry_out(self, function: Callable[[], Any]) -> Any:
        """In a thread: what a task comes to.

        Raises:
            JobError: if it has lost its worker too often.
        """
        errors, reference = self._ray.exceptions, self._task.remote(function)
        self._running.add(reference)
        try:
            return self._ray.get(reference)
        except errors.RayTaskError as error:
            raise (error.cause or error) from None
        except (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError) as error:
            why = str(error).partition("\n")[0]
            raise JobError(f"a trial has lost its Ray worker {RETRIES + 1} times: {why}") from None
        finally:
            self._running.discard(reference)


def call(function: Callable[[], Any]) -> Any:
    return function()


@contextmanager
def trials_on_ray() -> Iterator[None]:
    """Within this block all trials run on the Ray cluster of ``RAY_ADDRESS``, or on that of this host.

    `polyrhythm.sweep`, `polyrhythm.compare`, the learning of policies, and all else that asks joblib take part.

    Raises:
        UnreachableError: without a cluster.

    Example, which needs a cluster::

        with trials_on_ray():
            results = sweep(scenario, ["bsp", "asp"], seeds=range(20))
    """
    with joblib.parallel_config(backend=RayTasks(connected())):
        yield
