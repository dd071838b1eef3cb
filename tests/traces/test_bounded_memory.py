"""Proves that joining, attributing and reading do not hold a lake in memory.

A real lake of 102,000 calls whose histories repeat, written by SQL; each stage runs in a process
of its own, whose peak is read from the system.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from traces.storage.lake import Lake

REPOSITORY = Path(__file__).parents[2]
CALLS = 102_000
"""Talks of six."""
LIMIT_MB = 1200

pytestmark = pytest.mark.slow

_TIME = "make_timestamp(1767225600000000 + i * 60000) AT TIME ZONE 'UTC'"
_DAY = "CAST(make_timestamp(1767225600000000 + i * 60000) AS DATE)"
_SAID = """'{"content":"' || repeat('word ' || i || ' ', 40) || '","role":"' || role ||
           '","tool_call_id":null,"tool_calls":[]}'"""

# Talks of six steps without a key: only their histories hold them together.
_HOPS = f"""
    INSERT INTO hops BY NAME
    SELECT 'sha256:' || sha256('hop' || i) AS hop_id, 1 AS schema_version, 'openai' AS source,
           'no-routing-key' AS conversation_id, 'u' || (i // 6 % 1000) AS "user", i AS seq,
           'answer' AS role, 'L1' AS model,
           list_concat(flatten(list_transform(range(i - i % 6, i),
               lambda j: [md5('user' || j)::UUID, md5('assistant' || j)::UUID])),
               [md5('user' || i)::UUID]) AS message_ids,
           '[]' AS tools, '{{}}' AS params, {_SAID} AS completion, 'r' || i AS response_id,
           'ok' AS status, {_TIME} AS started_at, 0.5 AS duration_s, false AS canary, {_DAY} AS day
    FROM range({CALLS}) r(i), (SELECT 'assistant' AS role)
"""
_MESSAGES = f"""
    INSERT INTO messages BY NAME
    SELECT {_DAY} AS day, md5(role || i)::UUID AS message_id, role, {_SAID} AS body
    FROM range({CALLS}) r(i), (SELECT unnest(['user', 'assistant']) AS role)
"""
_FEEDBACK = f"""
    INSERT INTO feedback BY NAME
    SELECT 'f' || i AS feedback_id, 1 AS schema_version, 'x' AS source, 'response' AS target_kind,
           'r' || i AS target_id, 'verifier' AS kind, 'right' AS name, (i % 2)::DOUBLE AS value,
           {_TIME} AS created_at, {_DAY} AS day
    FROM range({CALLS}) r(i)
"""

_STAGES = {
    "join": """
from traces.storage.lake import Lake
from traces.joins.turns import refresh_turns
with Lake.open(home) as lake:
    print(*refresh_turns(lake))
    print(*lake.connection.execute("SELECT count(DISTINCT conversation_id) FROM turns").fetchall())
""",
    "attribute": """
from trace_records import PROFILE
from traces.attribute import attribute
print(attribute(home, PROFILE).outcomes)
""",
    "read": """
from traces.read import read_turns
print(sum(len(hop.messages) for bundle in read_turns(home) for hop in bundle.hops))
""",
}
_PEAK = """
import resource, sys
from pathlib import Path
sys.path.insert(0, "tests")
home = Path(sys.argv[1])
{stage}
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def run(stage: str, home: Path) -> tuple[list[str], int]:
    """Return what a stage printed, and the most memory it held in MB."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK.format(stage=_STAGES[stage]), str(home)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *printed, peak = done.stdout.splitlines()
    return printed, int(peak)


def test_a_large_lake_is_joined_attributed_and_read_in_bounded_memory(home: Path) -> None:
    with Lake.open(home) as lake:
        for statement in (_HOPS, _MESSAGES, _FEEDBACK):
            lake.connection.execute(statement)

    joined, join_mb = run("join", home)
    judged, attribute_mb = run("attribute", home)
    seen, read_mb = run("read", home)

    assert joined == [f"{CALLS} 0", f"({CALLS // 6},)"]
    assert judged == [str({"failure": CALLS // 2, "success": CALLS // 2})]
    assert seen == [str(CALLS * 6)]

    assert max(join_mb, attribute_mb, read_mb) < LIMIT_MB, (join_mb, attribute_mb, read_mb)
