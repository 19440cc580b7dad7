"""What Prometheus reads of a job: one prefix, base units, no label whose values grow without end."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from polyrhythm.live.model import activity_of
from polyrhythm.runtime.wire.control_protocol import Status

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STATES = ("computing", "waiting", "at the end", "joining", "leaving")


def exposition(status: Status | None, at_s: float, events: Mapping[str, int]) -> bytes:
    """The text that Prometheus reads.

    Args:
        status: the latest; None while nothing is known.
        at_s: when that was, in seconds since 1970.
        events: how often each kind of event has happened.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(status, at_s, events))
    return generate_latest(registry)


class StatusCollector(Collector):
    """One answer of a job's coordinator as metrics."""

    def __init__(self, status: Status | None, at_s: float, events: Mapping[str, int]) -> None:
        self._status, self._at_s, self._events = status, at_s, events

    def collect(self) -> Iterator[Metric]:
        status = self._status
        running = status is not None and not status.ended
        yield gauge("polyrhythm_up", "Whether the job is running.", float(running))
        if status is not None:
            yield from of_job(status, self._at_s, self._events)
            yield from of_workers(status)


def of_job(status: Status, at_s: float, events: Mapping[str, int]) -> Iterator[Metric]:
    yield InfoMetricFamily("polyrhythm_policy", "The policy in force.", value={"policy": status.policy})
    yield gauge("polyrhythm_epoch", "Epoch that is under way, from 0.", status.epoch)
    yield gauge("polyrhythm_phase", "Number of the phase: one policy on one set of workers.", status.phase)
    loss = status.figures.get("loss", status.loss)
    if loss is not None:
        yield gauge("polyrhythm_loss", "Mean of the latest losses that workers have told.", loss)
    reported = GaugeMetricFamily("polyrhythm_reported", "What the script reports, by its names.", labels=["name"])
    yield labelled(reported, status.figures)
    moments = [worker.reported_s for worker in status.workers if worker.reported_s is not None]
    if moments:
        stamp = at_s - max(0.0, status.time_s - max(moments))
        yield gauge("polyrhythm_last_step_timestamp_seconds", "When the latest step was complete.", stamp)
    yield counter("polyrhythm_switches", "Changes of the policy.", status.switches)
    yield counter("polyrhythm_skipped_samples", "Samples that were not processed.", status.skipped)
    yield counter("polyrhythm_local_steps", "Steps on a replica that no exchange followed.", status.local_steps)
    fates = {"applied": status.applied, "dropped": sum(status.dropped.values())}
    yield labelled(CounterMetricFamily("polyrhythm_gradients", "What became of gradients.", labels=["fate"]), fates)
    happened = CounterMetricFamily("polyrhythm_events", "What has happened to the job.", labels=["kind"])
    yield labelled(happened, events)
    if status.staleness:
        yield staleness(status)


def of_workers(status: Status) -> Iterator[Metric]:
    states = dict.fromkeys(STATES, 0)
    for worker in status.workers:
        states[activity_of(worker, status)] += 1
    yield labelled(GaugeMetricFamily("polyrhythm_workers", "Workers by what they do.", labels=["state"]), states)
    samples = CounterMetricFamily("polyrhythm_samples", "Samples of the steps of a worker.", labels=["rank"])
    yield labelled(samples, {str(worker.rank): worker.samples for worker in status.workers})
    steps = CounterMetricFamily("polyrhythm_steps", "Steps of a worker.", labels=["rank"])
    yield labelled(steps, {str(rank): arrival.steps for rank, arrival in status.arrivals.items()})
    sizes = CounterMetricFamily("polyrhythm_bytes", "Bytes of tensors by link.", labels=["rank", "direction"])
    for worker in status.workers:
        sizes.add_metric([str(worker.rank), "sent"], worker.sent)
        sizes.add_metric([str(worker.rank), "received"], worker.received)
    yield sizes
    times = CounterMetricFamily("polyrhythm_step_seconds", "Time of a worker by what it did.", labels=["rank", "part"])
    late = GaugeMetricFamily("polyrhythm_straggler", "Whether a worker is late now.", labels=["rank", "kind"])
    for rank, arrival in status.arrivals.items():
        parts = {"compute": arrival.compute_s, "transfer": arrival.transfer_s, "wait": arrival.wait_s}
        for part, mean_s in parts.items():
            times.add_metric([str(rank), part], mean_s * arrival.steps)
        if arrival.kind:
            late.add_metric([str(rank), arrival.kind], float(arrival.late))
    yield times
    yield late


def staleness(status: Status) -> HistogramMetricFamily:
    """Counts by bits, as buckets with the largest staleness of each."""
    buckets, total = [], 0
    for bits, count in enumerate(status.staleness):
        total += count
        last = bits == len(status.staleness) - 1
        buckets.append(("+Inf" if last else str(float(2**bits - 1)), float(total)))
    about = "Updates between a gradient's read and its arrival."
    return HistogramMetricFamily("polyrhythm_staleness_updates", about, buckets, float(status.staleness_sum))


def gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, about, value=value)


def counter(name: str, about: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, about, value=value)


def labelled(
    family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[str, float] | Iterable[tuple[str, float]]
) -> Metric:
    for label, value in dict(values).items():
        family.add_metric([label], value)
    return family
