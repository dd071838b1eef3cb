"""A mark of what learning reads, so that "nothing new" can be told from the lake's own work.

Snapshots also count compaction, retention and published lineage; this mark moves only
when a turn, an outcome or a blame does.
"""

from pathlib import Path

from serving.records import content_id
from traces.storage.lake import Lake

# Hashes of rows, added up in any order. The bodies of a turn follow from its hops.
_MARK = """
SELECT (SELECT (count(*), bit_xor(hash(turn_id, hop_ids, slot, digest, status, canary,
                                       supersedes, request, answer))) FROM turns),
       (SELECT count(*) FROM hops),
       (SELECT (count(*), bit_xor(hash(turn_id, success, tier, rule, correction, truncated)))
           FROM outcomes),
       (SELECT (count(*), bit_xor(hash(turn_id, klass, slot, right_slot, confidence))) FROM blame)
"""


def learning_mark(home: Path) -> str:
    """Return a content id of the turns of the lake of `home` and what became of them.

    Raises:
        LakeNotFound: if nothing was ingested yet.
    """
    with Lake.open(home, read_only=True) as lake:
        row = lake.connection.execute(_MARK).fetchone()
        assert row is not None
        return content_id([list(part) if isinstance(part, tuple) else part for part in row])
