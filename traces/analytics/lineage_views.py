"""Views on who served when and what each version learned from.

`adapters`, `tenures` and `lessons` are copies of what the registry and the datasets say,
brought into the lake by `flows.lineage`, so that lineage is a query. `digest` is in every
view the 12 hex digits that `turns.digest` and served names bear.
"""

from traces.analytics.view import View

VIEWS = (
    View(
        "v_served",
        "Who served when: turns by day, slot and version, their share of the slot's turns that "
        "day, the first and the last.",
        """
        SELECT *, turns / sum(turns) OVER (PARTITION BY day, slot) AS share
        FROM (SELECT t.day, t.slot, t.digest, count(*) AS turns,
                     min(t.started_at) AS first_at, max(t.started_at) AS last_at
              FROM turns t WHERE t.slot IS NOT NULL GROUP BY ALL)
        """,
    ),
    View(
        "v_tenures",
        "Periods in which the registry let a version serve, as champion or for a part of the "
        "traffic, and the turns it answered then; `until` is null while it serves.",
        """
        SELECT e.slot, e.version AS digest, e.kind, e.traffic, e.since, e.until, e.began_by,
               e.generation, count(t.turn_id) AS turns
        FROM tenures e LEFT JOIN turns t
          ON t.slot = e.slot AND t.digest = e.version AND t.started_at >= e.since
             AND (e.until IS NULL OR t.started_at < e.until)
        GROUP BY ALL
        """,
    ),
    View(
        "v_adapters",
        "One row an adapter version: the rows it learned from, the gate's verdict, since when it "
        "serves or served.",
        """
        SELECT a.slot, a.version AS digest, a.created_at, a.manifest_digest, l.train_rows,
               l.holdout_rows, a.gate_verdict, s.first_served_at, s.last_served_at, s.serves
        FROM adapters a
        LEFT JOIN (SELECT manifest_digest, count(*) FILTER (split = 'train') AS train_rows,
                          count(*) FILTER (split = 'holdout') AS holdout_rows
                   FROM lessons GROUP BY manifest_digest) l USING (manifest_digest)
        LEFT JOIN (SELECT slot, version, min(since) AS first_served_at,
                          CASE WHEN count(*) = count(until) THEN max(until) END AS last_served_at,
                          any_value(kind) FILTER (until IS NULL) AS serves
                   FROM tenures GROUP BY slot, version) s
          ON s.slot = a.slot AND s.version = a.version
        """,
    ),
    View(
        "v_lessons",
        "From a turn or hop to the versions that learned from it: one row a dataset row and "
        "version; rows of `holdout` were kept aside, and `digest` is null until one was trained.",
        """
        SELECT l.turn_id, l.hop_id, l.example_id, l.split, l.duty, l.source, l.weight,
               l.slot, a.version AS digest, a.gate_verdict, l.manifest_digest
        FROM lessons l LEFT JOIN adapters a USING (manifest_digest)
        """,
    ),
    View(
        "v_learned_from",
        "From an answer to the rows its version learned from: one row an answered turn and "
        "dataset row. Filter by turn_id: unfiltered it is large.",
        """
        SELECT t.turn_id, t.slot, t.digest, a.manifest_digest, l.example_id, l.split, l.duty,
               l.source, l.weight, l.turn_id AS learned_turn_id, l.hop_id AS learned_hop_id
        FROM turns t
        JOIN adapters a ON a.slot = t.slot AND a.version = t.digest
        JOIN lessons l ON l.manifest_digest = a.manifest_digest
        """,
    ),
)
