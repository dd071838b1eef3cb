"""What `/metrics` tells Prometheus about the server.

    metrics = Metrics(recorder=recorder.stats, documents=documents.stats, slots=versions_table)
    metrics.hop(hop)
    metrics.render()

In: hops, turns and requests as they end, and the present state by callables. Out:
the text that Prometheus scrapes. Everything is in a registry of its own, so that
several servers in one process do not mix.

Labels are bounded: slots are those of the slot table, `other` stands for every
name that is not in it, and of versions the latest are told apart. No text of a
client ever becomes a label.
"""

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serving.documents import DocumentsStats
from serving.recorder import RecorderStats
from serving.records import BASE_SLOT, Decision, Hop, parse_adapter_name
from serving.slot_table import SlotEntry, SlotFile

CONTENT_TYPE = CONTENT_TYPE_LATEST
OTHER = "other"
ENDPOINTS = (
    "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models", "/v1/feedback",
    "/openapi.json", "/health", "/readiness", "/metrics", "/_internal/routing-key",
    "/_internal/routing-keys",
)  # fmt: skip
MAX_VERSIONS = 64
"""Versions with counts of their own; beyond that the oldest one's end."""

_BUCKETS_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
)


class Metrics:
    """Counters of one server; safe to call from several threads."""

    def __init__(
        self,
        recorder: Callable[[], RecorderStats] | None = None,
        documents: Callable[[], DocumentsStats] | None = None,
        slots: Callable[[], SlotFile] | None = None,
    ) -> None:
        """The callables tell the present state; `slots` also which slots may be labels."""
        self._registry = registry = CollectorRegistry()
        self._slots = slots
        self._versions = _Versions()
        self._requests = Counter(
            "mol_requests", "Requests answered.", ("endpoint", "status"), registry=registry
        )
        self._request_s = Histogram(
            "mol_request_seconds", "From request to end of answer.", ("endpoint",),
            buckets=_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self._turns = Counter(
            "mol_turns", "Turns by how they got their slot.", ("decision", "status"),
            registry=registry,
        )  # fmt: skip
        self._hops = Counter(
            "mol_hops", "Engine calls, failed attempts included.",
            ("slot", "role", "version", "status"), registry=registry,
        )  # fmt: skip
        self._hop_s = Histogram(
            "mol_hop_seconds", "Duration of an engine call.", ("slot", "role"),
            buckets=_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self._ttft_s = Histogram(
            "mol_ttft_seconds", "From an engine call to its first piece, where streamed.",
            ("slot", "role"), buckets=_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self._tokens = {
            "prompt_tokens": Counter(
                "mol_prompt_tokens", "Tokens sent to engines.", ("slot",), registry=registry
            ),
            "cached_tokens": Counter(
                "mol_cached_tokens", "Those of them in a prefix cache.", ("slot",),
                registry=registry,
            ),
            "completion_tokens": Counter(
                "mol_completion_tokens", "Tokens that engines wrote.", ("slot",),
                registry=registry,
            ),
        }  # fmt: skip
        self.in_flight = Gauge(
            "mol_requests_in_flight", "Requests worked on now.", registry=registry
        )
        """Takes a function that tells the number."""
        self.waiting = Gauge(
            "mol_requests_waiting", "Requests that wait for their turn.", registry=registry
        )
        """The same."""
        # Labels are few, and looking one up costs more than counting under it.
        self._request_s_of = cache(self._request_s.labels)
        self._requests_of = cache(self._requests.labels)
        self._hop_s_of = cache(self._hop_s.labels)
        self._ttft_s_of = cache(self._ttft_s.labels)
        self._tokens_of = {name: cache(counter.labels) for name, counter in self._tokens.items()}
        registry.register(_State(recorder, documents, slots))
        ProcessCollector(registry=registry)

    def request(self, endpoint: str, status: int, duration_s: float) -> None:
        """Count an answered request; `endpoint` is its path."""
        path = endpoint if endpoint in ENDPOINTS else OTHER
        self._requests_of(path, str(int(status))).inc()
        self._request_s_of(path).observe(duration_s)

    def turn(self, decision: Decision, status: str) -> None:
        """Count an ended turn; `status` as its record has it."""
        self._turns.labels(decision, status).inc()

    def hop(self, hop: Hop) -> None:
        """Count an ended engine call."""
        slot, version = self._labels(hop)
        self._hops.labels(slot, hop.role, version, hop.status).inc()
        self._hop_s_of(slot, hop.role).observe(hop.duration_s)
        if hop.ttft_s is not None:
            self._ttft_s_of(slot, hop.role).observe(hop.ttft_s)
        for field, counter_of in self._tokens_of.items():
            count = getattr(hop, field)
            if count is not None and count > 0:
                counter_of(slot).inc(count)

    def render(self) -> bytes:
        """Return the text for Prometheus, of type `CONTENT_TYPE`."""
        return generate_latest(self._registry)

    def _labels(self, hop: Hop) -> tuple[str, str]:
        slot = hop.slot
        if slot == BASE_SLOT:
            return slot, ""
        if self._slots is None or self._slots().get(slot) is None:
            return OTHER, ""
        digest = hop.digest
        if digest is None or not _is_version(f"{slot}@{digest}"):
            return slot, ""
        for old_slot, old_version in self._versions.seen(slot, digest):
            self._hops.remove_by_labels({"slot": old_slot, "version": old_version})
        return slot, digest


class _Versions:
    """The versions that have counts of their own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen: dict[tuple[str, str], None] = {}

    def seen(self, slot: str, digest: str) -> list[tuple[str, str]]:
        """Note a version; return those that have to go for it."""
        key = slot, digest
        with self._lock:
            self._seen.pop(key, None)
            self._seen[key] = None
            gone = [*self._seen][: max(0, len(self._seen) - MAX_VERSIONS)]
            for old in gone:
                del self._seen[old]
            return gone


@lru_cache(maxsize=1024)
def _is_version(name: str) -> bool:
    try:
        parse_adapter_name(name)
    except ValueError:
        return False
    return True


class _State(Collector):
    """What is read when Prometheus asks: recorder, documents, slot table."""

    def __init__(
        self,
        recorder: Callable[[], RecorderStats] | None,
        documents: Callable[[], DocumentsStats] | None,
        slots: Callable[[], SlotFile] | None,
    ) -> None:
        self._recorder = recorder
        self._documents = documents
        self._slots = slots

    def describe(self) -> list[Metric]:
        """Nothing is asked before the server runs."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the present state."""
        if self._recorder is not None:
            yield from _recorder_metrics(self._recorder())
        if self._documents is not None:
            yield from _documents_metrics(self._documents())
        if self._slots is not None:
            yield from _slot_metrics(self._slots())


def _recorder_metrics(stats: RecorderStats) -> Iterator[Metric]:
    yield CounterMetricFamily("mol_records", "Records on disk.", stats.recorded)
    dropped = CounterMetricFamily(
        "mol_records_dropped", "Records lost, by reason.", labels=("reason",)
    )
    for reason in ("queue_full", "disk", "invalid", "closed"):
        dropped.add_metric((reason,), stats.dropped.get(reason, 0))
    yield dropped
    yield GaugeMetricFamily(
        "mol_records_queued", "Entries that wait for the recorder.", stats.queued
    )
    yield GaugeMetricFamily(
        "mol_recorder_up", "Whether the spool took the last write.", stats.last_error is None
    )


def _documents_metrics(stats: DocumentsStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("mol_documents", "Documents in memory.", stats.in_memory)
    yield GaugeMetricFamily("mol_documents_bytes", "Their size.", stats.in_memory_bytes)
    yield GaugeMetricFamily("mol_documents_unsaved", "Not on disk yet.", stats.unsaved)
    yield CounterMetricFamily(
        "mol_documents_failed_writes", "Writes that the disk refused.", stats.failures
    )


def _slot_metrics(table: SlotFile) -> Iterator[Metric]:
    version = GaugeMetricFamily(
        "mol_slot_version_info",
        "Versions that each slot serves.",
        labels=("slot", "role", "arm", "version"),
    )
    percent = GaugeMetricFamily(
        "mol_slot_canary_percent", "Part of the conversations on the canary.", labels=("slot",)
    )
    for entry in table.slots:
        for arm, name in _arms(entry):
            version.add_metric((entry.slot, entry.role, arm, name), 1)
        percent.add_metric((entry.slot,), entry.canary_percent)
    yield version
    yield percent


def _arms(entry: SlotEntry) -> Iterator[tuple[str, str]]:
    yield "champion", entry.champion.partition("@")[2] if entry.champion else BASE_SLOT
    if entry.canary is not None:
        yield "canary", entry.canary.partition("@")[2]
