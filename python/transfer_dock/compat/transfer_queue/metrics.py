"""Metrics for Prometheus under TransferQueue's names; requires ``prometheus_client``.

``init`` with ``metrics.enabled`` serves them. What the dock itself does not count has no series: the times and errors of
single requests, what is on a solid-state disk, the queue of a listening socket.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, start_http_server
from prometheus_client.parser import text_string_to_metric_families

logger = logging.getLogger(__name__)

# How long to wait for the dock's own metrics, in seconds.
_STORAGE_TIMEOUT = 5.0
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_UNIT = ("storage_unit_id",)
_UNIT_AND_OP = ("storage_unit_id", "op_type")
_TASK = ("partition_id", "task_name")
# By attribute: the name of a gauge, its labels, and what it says.
_GAUGES: dict[str, tuple[str, tuple[str, ...], str]] = {
    "controller_uptime": ("tq_controller_uptime_seconds", (), "How long the metrics have been served"),
    "controller_memory_rss": ("tq_controller_memory_rss_bytes", (), "Memory of the process that called init()"),
    "partitions_total": ("tq_partitions_total", (), "Partitions"),
    "partition_samples": ("tq_partition_samples_total", ("partition_id",), "Samples of a partition"),
    "partition_production_progress": ("tq_partition_production_progress", _TASK, "Share of samples that have data"),
    "partition_consumption_progress": ("tq_partition_consumption_progress", _TASK, "Share of samples consumed"),
    "global_index_allocated": ("tq_global_index_allocated_total", (), "Samples that there are"),
    "global_index_reusable": ("tq_global_index_reusable_total", (), "Indexes that may be used again: always none"),
    "storage_capacity": ("tq_storage_capacity_total", _UNIT, "Samples that a storage unit can hold"),
    "storage_active_keys": ("tq_storage_active_keys_total", _UNIT, "Samples that a storage unit holds"),
    "storage_utilization": ("tq_storage_utilization_ratio", _UNIT, "Share of the capacity that is used"),
    "storage_memory_rss": ("tq_storage_memory_rss_bytes", _UNIT, "Memory of the process of a storage unit"),
    "storage_ssd_offload_enabled": ("tq_storage_ssd_offload_enabled", _UNIT, "1 if a storage unit writes to a disk"),
    "storage_ssd_active_values": ("tq_storage_ssd_active_values", _UNIT, "Values on the disk"),
    "storage_ssd_active_bytes": ("tq_storage_ssd_active_bytes", _UNIT, "Bytes on the disk"),
    "storage_ssd_fallback_values": ("tq_storage_ssd_fallback_values_total", _UNIT, "Values that had to stay in memory"),
    "storage_requests_arrived": ("tq_storage_requests_arrived", _UNIT, "Requests that a storage unit got"),
    "storage_arrivals_by_op": ("tq_storage_arrivals_by_op", _UNIT_AND_OP, "Requests that a storage unit got, by kind"),
    "storage_accept_queue_backlog": ("tq_storage_accept_queue_backlog", _UNIT, "Length of the queue of connections"),
    "storage_accept_queue_peak": ("tq_storage_accept_queue_peak", _UNIT, "Most connections that were in the queue"),
    "storage_accept_queue_peak_utilization": (
        "tq_storage_accept_queue_peak_utilization_ratio",
        _UNIT,
        "Largest share of the queue of connections that was used",
    ),
    "storage_socket_drops": ("tq_storage_socket_drops", _UNIT, "Connections that were dropped"),
    "storage_listen_overflows": ("tq_storage_listen_overflows", _UNIT, "Connections that found the queue full"),
    "storage_listen_other_drops": ("tq_storage_listen_other_drops", _UNIT, "Connections dropped for another reason"),
    "storage_request_ops": ("tq_storage_request_ops", _UNIT_AND_OP, "Requests that a storage unit carried out"),
    "storage_request_latency_avg": ("tq_storage_request_latency_avg", _UNIT_AND_OP, "Mean time of a request, seconds"),
    "storage_request_latency_p50": ("tq_storage_request_latency_p50", _UNIT_AND_OP, "Median time, seconds"),
    "storage_request_latency_p99": ("tq_storage_request_latency_p99", _UNIT_AND_OP, "99th percentile, seconds"),
}
# What a storage unit tells, by the gauge that shows it: 0 where it does not; without a series where it does not.
_OF_UNIT = {
    "storage_active_keys": "active_keys",
    "storage_memory_rss": "process_rss_bytes",
    "storage_ssd_offload_enabled": "ssd_offload_enabled",
    "storage_ssd_active_values": "ssd_active_values",
    "storage_ssd_active_bytes": "ssd_active_bytes",
    "storage_ssd_fallback_values": "ssd_fallback_values_total",
    "storage_requests_arrived": "requests_arrived",
}
_OF_QUEUE = {
    "storage_accept_queue_backlog": "backlog",
    "storage_accept_queue_peak": "peak_recv_q",
    "storage_accept_queue_peak_utilization": "peak_utilization",
    "storage_socket_drops": "sk_drops_delta",
    "storage_listen_overflows": "listen_overflow_delta",
    "storage_listen_other_drops": "non_overflow_drop_delta",
}
_OF_OPERATION = {
    "storage_request_ops": "request_count",
    "storage_request_latency_avg": "latency_avg",
    "storage_request_latency_p50": "latency_p50",
    "storage_request_latency_p99": "latency_p99",
}


def _resident_bytes() -> int:
    """Of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class _Registry(CollectorRegistry):
    """Looks at the dock whenever it is asked."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look = look

    def collect(self) -> Iterable[Metric]:
        self._look()
        return super().collect()


class TQMetricsExporter:
    """The metrics, and the HTTP server that has them at ``/metrics``. What is not given a value has no series.

    The attributes named as in TransferQueue are the gauges, counters and histograms. Thread-safe.
    """

    registry: CollectorRegistry

    def __init__(
        self, role: str = "controller", zmq_context: Any = None, *, snapshot: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        """``snapshot`` is called at each request, for ``update_controller_snapshot``. ``zmq_context`` is ignored."""
        self._role = role
        self._take_snapshot = snapshot
        self._started = time.time()
        self._snapshot: dict[str, Any] = {}
        self._storage_unit_infos: dict[str, Any] = {}
        self._shown: dict[str, set[tuple[str, ...]]] = {}
        self._endpoint = ""
        self._httpd: Any = None
        self.registry = _Registry(self._look)
        self.request_duration = Histogram(
            f"tq_{role}_request_duration_seconds", "Time of requests", ["op_type"], buckets=_BUCKETS, registry=self.registry
        )
        self.request_total = self._counter("", "Requests")
        self.request_errors_total = self._counter("_errors", "Requests that failed")
        self.request_samples_total = self._counter("_samples", "Samples of requests")
        if role == "controller":
            for attribute, (name, labels, text) in _GAUGES.items():
                setattr(self, attribute, Gauge(name, text, labels, registry=self.registry))

    def _counter(self, what: str, text: str) -> Counter:
        return Counter(f"tq_{self._role}_request{what}", text, ["op_type"], registry=self.registry)

    def _gauge(self, attribute: str) -> Gauge:
        gauge: Gauge = getattr(self, attribute)
        return gauge

    @property
    def endpoint(self) -> str:
        """``host:port``; empty before ``start``."""
        return self._endpoint

    # ---- Requests.

    @contextlib.contextmanager
    def measure(self, op_type: str) -> Iterator[None]:
        """Counts a request and takes its time; one that raises counts as an error too."""
        self.request_total.labels(op_type=op_type).inc()
        begin = time.perf_counter()
        try:
            yield
        except Exception:
            self.request_errors_total.labels(op_type=op_type).inc()
            raise
        finally:
            self.request_duration.labels(op_type=op_type).observe(time.perf_counter() - begin)

    def record_samples(self, op_type: str, count: int) -> None:
        self.request_samples_total.labels(op_type=op_type).inc(count)

    # ---- Partitions.

    def update_controller_snapshot(self, snapshot: dict[str, Any]) -> None:
        """What ``collect_controller_metrics`` shows: ``partitions``, by name ``total_samples_num``,
        ``production_statistics`` and ``consumption_statistics``; ``global_index_allocated`` and ``_reusable``."""
        self._snapshot = snapshot

    def collect_controller_metrics(self) -> None:
        snapshot = self._snapshot
        partitions: Mapping[str, Any] = snapshot.get("partitions", {})
        self._gauge("controller_uptime").set(time.time() - self._started)
        self._gauge("controller_memory_rss").set(_resident_bytes())
        self._gauge("partitions_total").set(len(partitions))
        self._gauge("global_index_allocated").set(snapshot.get("global_index_allocated", 0))
        self._gauge("global_index_reusable").set(snapshot.get("global_index_reusable", 0))
        self._show("partition_samples", {(name,): told["total_samples_num"] for name, told in partitions.items()})
        for what in ("production", "consumption"):
            progress: dict[tuple[str, ...], float] = {
                (name, task): of_task.get(f"{what}_progress", 0)
                for name, told in partitions.items()
                for task, of_task in told.get(f"{what}_statistics", {}).items()
            }
            self._show(f"partition_{what}_progress", progress)

    def _show(self, attribute: str, values: Mapping[tuple[str, ...], float]) -> None:
        """These series and no others."""
        gauge = self._gauge(attribute)
        for labels in self._shown.get(attribute, set()) - values.keys():
            gauge.remove(*labels)
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        self._shown[attribute] = set(values)

    # ---- Storage: the dock.

    def register_storage_units(self, storage_unit_infos: Mapping[str, Any]) -> None:
        """By name, where each tells its own metrics: the URL of a dock's (``tdock-dock serve --metrics``)."""
        self._storage_unit_infos.update(storage_unit_infos)

    def collect_storage_metrics(self) -> None:
        """Units that do not answer keep the values that they had."""
        for unit, info in list(self._storage_unit_infos.items()):
            try:
                told = self._query_storage_unit(info, unit)
                if told is not None:
                    self._show_unit(str(told.get("storage_unit_id", unit)), told)
            except Exception as error:  # whatever it is, the others are asked too
                logger.warning("the metrics of storage unit '%s' cannot be read: %s", unit, error)

    def _query_storage_unit(self, info: Any, unit: str) -> dict[str, Any] | None:
        """Raises OSError if nobody answers."""
        with urllib.request.urlopen(str(info), timeout=_STORAGE_TIMEOUT) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        value = {sample.name: sample.value for sample in samples if not sample.labels}
        rows = [one for one in samples if one.name == "tdock_rows" and not one.labels["partition"].startswith("~")]
        return {
            "storage_unit_id": unit,
            "capacity": None,
            "active_keys": sum(one.value for one in rows),
            "process_rss_bytes": value["process_resident_memory_bytes"],
            "requests_arrived": value["tdock_calls_total"],
        }

    def _show_unit(self, unit: str, told: Mapping[str, Any]) -> None:
        capacity, active = told.get("capacity", 0), told.get("active_keys", 0)
        used = None if capacity is None else active / capacity if capacity > 0 else 0.0
        self._set_or_remove("storage_capacity", unit, capacity)
        self._set_or_remove("storage_utilization", unit, used)
        for attribute, name in _OF_UNIT.items():
            self._gauge(attribute).labels(unit).set(told.get(name, 0))
        queue = told.get("accept_queue")
        for attribute, name in _OF_QUEUE.items():
            self._set_or_remove(attribute, unit, None if queue is None else queue.get(name, 0))
        for operation, arrived in (told.get("arrivals_by_op") or {}).items():
            self._gauge("storage_arrivals_by_op").labels(unit, operation).set(arrived)
        for operation, numbers in told.get("op_stats", {}).items():
            for attribute, name in _OF_OPERATION.items():
                self._gauge(attribute).labels(unit, operation).set(numbers.get(name, 0))

    def _set_or_remove(self, attribute: str, unit: str, value: float | None) -> None:
        if value is not None:
            self._gauge(attribute).labels(unit).set(value)
        else:
            with contextlib.suppress(KeyError):
                self._gauge(attribute).remove(unit)

    # ---- Serving.

    def _look(self) -> None:
        if self._take_snapshot is not None:
            self.update_controller_snapshot(self._take_snapshot())
            self.collect_controller_metrics()
            self.collect_storage_metrics()

    def start(self, node_ip: str = "127.0.0.1", port: int = 0) -> str:
        """Serves ``/metrics`` until ``close``, port 0: any. Returns the endpoint, ``host:port``. Raises OSError."""
        self._httpd, _ = start_http_server(port, node_ip, registry=self.registry)
        self._endpoint = f"{node_ip}:{self._httpd.server_address[1]}"
        return self._endpoint

    def close(self) -> None:
        if self._httpd is not None:
            self._httpd.shutdown()
            self._httpd.server_close()
            self._httpd = None
