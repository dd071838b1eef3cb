"""Proves the metrics: what is counted, under which names, and that labels are bounded.

Read back with Prometheus' own parser. The hops are made up; nothing is faked.
"""

import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from trace_records import hop

from serving.config import RecordConfig
from serving.documents import Documents
from serving.metrics import MAX_VERSIONS, Metrics
from serving.recorder import Recorder
from serving.slot_table import SlotEntry, SlotFile

TABLE = SlotFile(
    slots=(
        SlotEntry(slot="L0", role="router"),
        SlotEntry(
            slot="L2",
            champion="L2@3fa9c1d2e4b5",
            digest="sha256:3fa9c1d2e4b5" + "0" * 52,
            path="adapters/L2/3fa9c1d2e4b5",
            canary="L2@91c0aa00bb11",
            canary_digest="sha256:91c0aa00bb11" + "0" * 52,
            canary_path="adapters/L2/91c0aa00bb11",
            canary_percent=12.5,
        ),
    )
)


ORDER = ("slot", "role", "arm", "version", "decision", "endpoint", "status", "reason", "le")


def samples(metrics: Metrics) -> dict[str, float]:
    """Return what Prometheus reads, by name and labels."""
    found = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = [f"{k}={sample.labels[k]}" for k in ORDER if k in sample.labels]
            found[f"{sample.name}{{{','.join(labels)}}}"] = sample.value
    return found


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(slots=lambda: TABLE)


def test_a_hop_is_counted_with_its_version_times_and_tokens(metrics: Metrics) -> None:
    metrics.hop(
        hop(prompt_tokens=100, cached_tokens=80, completion_tokens=7, duration_s=0.5, ttft_s=0.03)
    )
    metrics.hop(hop("route", "L0", model="L0", served_name="L0", prompt_tokens=10))

    found = samples(metrics)
    answer = "slot=L2,role=answer"
    assert found[f"mol_hops_total{{{answer},version=3fa9c1d2e4b5,status=ok}}"] == 1
    assert found["mol_hops_total{slot=L0,role=route,version=,status=ok}"] == 1
    assert found[f"mol_hop_seconds_sum{{{answer}}}"] == 0.5
    assert found[f"mol_ttft_seconds_bucket{{{answer},le=0.05}}"] == 1
    assert found[f"mol_ttft_seconds_bucket{{{answer},le=0.02}}"] == 0
    assert found["mol_prompt_tokens_total{slot=L2}"] == 100
    assert found["mol_cached_tokens_total{slot=L2}"] == 80
    assert found["mol_completion_tokens_total{slot=L2}"] == 7
    assert found["mol_prompt_tokens_total{slot=L0}"] == 10
    assert "mol_ttft_seconds_sum{slot=L0,role=route}" not in found


def test_the_base_model_s_hops_are_told_apart(metrics: Metrics) -> None:
    metrics.hop(hop(model="base", served_name="base"))

    assert samples(metrics)["mol_hops_total{slot=base,role=answer,version=,status=ok}"] == 1


def test_a_failed_hop_is_counted_under_its_status(metrics: Metrics) -> None:
    metrics.hop(hop(status="broken_stream", completion=None))

    label = "slot=L2,role=answer,version=3fa9c1d2e4b5,status=broken_stream"
    assert samples(metrics)[f"mol_hops_total{{{label}}}"] == 1


def test_unknown_names_share_one_label(metrics: Metrics) -> None:
    for n in range(100):
        metrics.hop(hop(model=f"/etc/passwd{n}", served_name=None))
        metrics.hop(hop(slot=f"L{n + 3}"))
        metrics.request(f"/v1/../{n}", 404, 0.001)

    found = samples(metrics)
    assert [key for key in found if key.startswith("mol_hops_total")] == [
        "mol_hops_total{slot=other,role=answer,version=,status=ok}"
    ]
    assert found["mol_requests_total{endpoint=other,status=404}"] == 100


def test_a_version_that_is_none_is_no_label(metrics: Metrics) -> None:
    metrics.hop(hop(model="L2", served_name="L2@latest"))

    assert samples(metrics)["mol_hops_total{slot=L2,role=answer,version=,status=ok}"] == 1


def test_of_many_versions_the_latest_are_kept(metrics: Metrics) -> None:
    for n in range(MAX_VERSIONS + 10):
        for _ in range(2):
            metrics.hop(hop(served_name=f"L2@{n:012x}"))
        metrics.hop(hop())

    kept = [key for key in samples(metrics) if key.startswith("mol_hops_total")]
    assert len(kept) == MAX_VERSIONS
    assert not any(f"version={n:012x}" in key for key in kept for n in range(10))
    assert any("version=3fa9c1d2e4b5" in key for key in kept)


def test_requests_and_turns_are_counted(metrics: Metrics) -> None:
    metrics.request("/v1/messages", 200, 0.5)
    metrics.request("/v1/messages", 429, 0.5)
    metrics.turn("explored", "ok")
    metrics.in_flight.inc()
    metrics.waiting.set(3)

    found = samples(metrics)
    assert found["mol_requests_total{endpoint=/v1/messages,status=200}"] == 1
    assert found["mol_requests_total{endpoint=/v1/messages,status=429}"] == 1
    assert found["mol_request_seconds_count{endpoint=/v1/messages}"] == 2
    assert found["mol_turns_total{decision=explored,status=ok}"] == 1
    assert found["mol_requests_in_flight{}"] == 1
    assert found["mol_requests_waiting{}"] == 3


def test_the_slot_table_in_force_is_shown() -> None:
    table = [TABLE]
    metrics = Metrics(slots=lambda: table[0])
    before = samples(metrics)
    table[0] = SlotFile(slots=TABLE.slots[:1])
    after = samples(metrics)

    base = "mol_slot_version_info{slot=L0,role=router,arm=champion,version=base}"
    champion = "mol_slot_version_info{slot=L2,role=expert,arm=champion,version=3fa9c1d2e4b5}"
    canary = "mol_slot_version_info{slot=L2,role=expert,arm=canary,version=91c0aa00bb11}"
    assert [before[key] for key in (base, champion, canary)] == [1, 1, 1]
    assert before["mol_slot_canary_percent{slot=L2}"] == 12.5
    assert base in after
    assert champion not in after


def test_recorder_and_documents_are_read_when_asked(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "spool", RecordConfig(queue=1))
    documents = Documents(tmp_path / "documents.sqlite")
    metrics = Metrics(recorder=recorder.stats, documents=documents.stats)
    recorder.put(hop())
    recorder.put(hop())
    documents.put("a", b"four")

    waiting = samples(metrics)
    recorder.start()
    assert recorder.close()
    assert documents.close()
    done = samples(metrics)

    assert waiting["mol_records_dropped_total{reason=queue_full}"] == 1
    assert waiting["mol_records_dropped_total{reason=disk}"] == 0
    assert (waiting["mol_records_queued{}"], done["mol_records_queued{}"]) == (1, 0)
    assert (waiting["mol_records_total{}"], done["mol_records_total{}"]) == (0, 1)
    assert done["mol_recorder_up{}"] == 1
    assert (done["mol_documents{}"], done["mol_documents_bytes{}"]) == (1, 4)
    assert (done["mol_documents_unsaved{}"], done["mol_documents_failed_writes_total{}"]) == (0, 0)


def test_servers_of_one_process_do_not_mix() -> None:
    first, second = Metrics(), Metrics()
    first.turn("routed", "ok")

    assert "mol_turns_total{decision=routed,status=ok}" in samples(first)
    assert "mol_turns_total{decision=routed,status=ok}" not in samples(second)


def test_threads_count_right(metrics: Metrics) -> None:
    def work() -> None:
        for n in range(300):
            metrics.hop(hop(served_name=f"L2@{n % 70:012x}", prompt_tokens=1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert samples(metrics)["mol_prompt_tokens_total{slot=L2}"] == 1200
