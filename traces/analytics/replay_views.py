"""Views on counterfactual replays: what other slots would have made of a turn, and what was learnt.

`replays` has one row an arm, `preferences` one row a pair of answers to the same prompt; see
`traces.attribution.replay`.
"""

from traces.analytics.view import View

VIEWS = (
    View(
        "v_replays",
        "One row a replayed turn and slot: fresh answers of one version, how many succeeded with "
        "the 95 % interval of that share, and whether the slot is the one that had answered.",
        """
        SELECT t.day, r.turn_id, r.slot, r.digest, r.slot = t.slot AS answered, r.samples,
               r.successes, r.successes / nullif(r.samples, 0) AS success_rate,
               wilson_low(r.successes, r.samples) AS low_95,
               wilson_high(r.successes, r.samples) AS high_95, r.config, r.code_version,
               r.created_at
        FROM replays r JOIN turns t USING (turn_id)
        """,
    ),
    View(
        "v_preferences",
        "One row a preference pair: a better and a worse answer of a slot to what one hop saw "
        "(`prompt` and `tools` as JSON text), of turns whose failure and replay still count. "
        "Filter by turn_id or slot: it reads bodies.",
        """
        SELECT p.pair_id, t.day, p.turn_id, p.slot, p.digest, p.hop_id, h.messages AS prompt,
               h.tools, p.chosen, p.rejected, p.source, p.created_at
        FROM preferences p JOIN turns t USING (turn_id) JOIN v_hops h USING (hop_id)
        SEMI JOIN (SELECT turn_id FROM blame WHERE verdict IS NOT NULL) b
               ON b.turn_id = p.turn_id
        """,
    ),
)
