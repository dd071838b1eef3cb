"""Proves that memory is bounded: five gigabytes of spool are ingested and joined in less than two.

The spool is the intake benchmark's; it is written to the disk and removed again. Memory is the
most that the child process ever held, as the system says.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.intake_data import write_spool

REPOSITORY = Path(__file__).parents[2]
INPUT_BYTES = 5 * 10**9
MEMORY_BYTES = 2 * 10**9

_CHILD = """
import resource, sys
from pathlib import Path
from traces.ingest import ingest
funnel = ingest(Path(sys.argv[1]), Path(sys.argv[2])).funnel
print(funnel["hops_added"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_five_gigabytes_take_less_than_two(home: Path, tmp_path: Path) -> None:
    spool = tmp_path / "spool.jsonl"
    try:
        written = write_spool(spool, 1_400_000)
        size = spool.stat().st_size
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(home), str(spool)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        spool.unlink(missing_ok=True)

    added, peak_bytes = map(int, done.stdout.split())
    assert size >= INPUT_BYTES
    assert added == written
    assert peak_bytes < MEMORY_BYTES
