"""Intake and analytics beside what others need for the same bytes.

    python -m benchmarks.intake [--quick] [--no-phoenix] [--tau FILE] [--chdb PYTHON]

Ingest end to end (read, check, hash, store once, join) of a made-up spool and of tau-bench's
trajectories, beside DuckDB's bare `read_json` to Parquet of the same bytes; the same calls over
OTLP, beside Arize Phoenix with its own store; and the analytics questions of
`docs/analytics.md`, beside ClickHouse embedded over the same Parquet. Everything is run at two
sizes, ten times apart, in processes of its own, side by side.

The last line is one JSON object; what was not measured is null. `hops_per_s`, `vs_read_json`
and `bytes_per_hop` are of the largest spool, `reingest_added` counts rows that a second ingest
of the same, split and reordered bytes added anywhere. `--quick` ends within a minute: smaller, and
without Phoenix. Status 1 means that a row was lost or doubled.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import intake_ingest, intake_queries, intake_spans
from infra.base_model import say_on_stderr
from traces.storage.connections import interrupt_on_signals

TAU_BENCH = Path("../shared/data/tau-bench/gpt-4o-airline.json")
HOPS, QUICK_HOPS = (10_000, 100_000, 1_000_000), (1_000, 10_000)
SPANS = (512, 5_120)
QUERY_HOPS, QUICK_QUERY_HOPS = (1_000_000, 10_000_000), (20_000, 200_000)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run all that was asked for and return what was measured."""
    report: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="mol-intake-", dir=given.folder))
    try:
        spools = [_spool(folder, hops, given.rounds) for hops in given.hops]
        largest = spools[-1]
        report["hops_per_s"] = largest["hops_per_s"]
        report["vs_read_json"] = largest["vs_read_json"]
        report["bytes_per_hop"] = largest["bytes_per_hop"]
        report["spools"] = spools
        report["tau_bench"] = _tau_bench(folder, given.tau, given.rounds)
        again = [*spools, *([report["tau_bench"]] if report["tau_bench"] else [])]
        report["reingest_added"] = sum(each["reingest_added"] for each in again)
        report["lost"] = sum(each["lost"] for each in again)
        report |= _phoenix(folder, given.phoenix)
        report |= intake_queries.measure(folder / "queries", given.query_hops, given.chdb)
    finally:
        shutil.rmtree(folder)
    return report


def _spool(folder: Path, hops: int, rounds: int) -> dict[str, Any]:
    say_on_stderr(f"A spool of {hops:,} hops ...")
    work = folder / f"spool-{hops}"
    work.mkdir()
    source, written = intake_ingest.write(work, hops)
    measured = intake_ingest.measure(work, source, written, rounds)
    shutil.rmtree(work)
    return measured


def _tau_bench(folder: Path, source: Path, rounds: int) -> dict[str, Any] | None:
    if not source.is_file():
        say_on_stderr(f"No file {str(source)!r}: tau-bench is not measured; name it with --tau.")
        return None
    say_on_stderr("tau-bench's trajectories ...")
    work = folder / "tau"
    work.mkdir()
    return intake_ingest.measure(work, source, None, rounds)


def _phoenix(folder: Path, python: Path | None) -> dict[str, Any]:
    if python is None:
        return {"vs_phoenix": None, "otlp": None}
    sizes: list[dict[str, Any]] = []
    for spans in SPANS:
        say_on_stderr(f"{spans:,} spans over OTLP, into the lake and into Phoenix ...")
        work = folder / f"spans-{spans}"
        work.mkdir()
        sent = intake_spans.requests(spans)
        own = intake_spans.into_lake(work, sent, spans)
        theirs = intake_spans.into_phoenix(work, sent, spans, python)
        sizes.append({
            "spans": spans,
            "spans_per_s": round(spans / own, 1),
            "phoenix_spans_per_s": round(spans / theirs, 1),
            "vs_phoenix": round(theirs / own, 2),
        })  # fmt: skip
    return {"vs_phoenix": sizes[-1]["vs_phoenix"], "otlp": sizes}


def is_sound(report: dict[str, Any]) -> bool:
    """Say whether no row was lost or doubled, however fast or slow it was."""
    return not report["reingest_added"] and not report["lost"]


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="less of everything; a minute")
    parser.add_argument("--tau", type=Path, default=TAU_BENCH, help="tau-bench's trajectories")
    parser.add_argument("--phoenix", type=Path, help="Python of an environment with Arize Phoenix")
    parser.add_argument("--no-phoenix", action="store_true", help="do not measure it")
    parser.add_argument("--chdb", type=Path, help="Python of an environment that has chdb")
    parser.add_argument("--no-chdb", action="store_true", help="do not measure it")
    parser.add_argument("--hops", type=int, nargs="+", help="sizes of the spools")
    parser.add_argument("--query-hops", type=int, nargs="+", help="sizes of the lakes to query")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument("--folder", type=Path, help="where 20 GB of data may lie meanwhile")
    given = parser.parse_args(words)
    given.hops = given.hops or (QUICK_HOPS if given.quick else HOPS)
    given.query_hops = given.query_hops or (QUICK_QUERY_HOPS if given.quick else QUERY_HOPS)
    given.rounds = given.rounds or (1 if given.quick else 3)
    return given


def main() -> int:
    """Measure and print."""
    interrupt_on_signals()
    given = parse()
    if given.no_phoenix:
        given.phoenix = None
    elif given.phoenix is None and not given.quick:
        given.phoenix = intake_spans.install_phoenix()
    if given.no_chdb:
        given.chdb = None
    elif given.chdb is None and not given.quick:
        given.chdb = intake_queries.install_chdb()
    report = measure(given)
    print(json.dumps(report))
    return 0 if is_sound(report) else 1


if __name__ == "__main__":
    sys.exit(main())
