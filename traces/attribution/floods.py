"""Floods: turns of which so much was said that not all of it is kept.

Of a turn with more than `MANY` signals those stay that can decide, and of each sort (kind, for or
against, who said it) the first and the latest; what is left out is counted. What stays gives the
same outcome: a user's thumb counts once, the latest; of strangers and anonymous thumbs, who are one
voice together, the side that most are on stays the larger one; who said both in one moment stays
with both; the latest edits that say what was wanted stay. It
gives the same blame too: verifiers that are a slot's business are sorts of their own, and so are
verdicts that kept what they checked against. What attribution derives itself always stays.

In: `judged.named`, `judged.derived`, `judged.turns`, and the lake at the same snapshot. Out:
`judged.left_out` (which signals of which turn) and `judged.floods` (how many, in words).
"""

# Table and column names come from our own declarations; values are bound.
# ruff: noqa: S608

import duckdb

from serving.slots import Profile

MANY = 200
"""Signals of a turn up to which all are kept."""
_FIRST, _LATEST = 2, 8
_STRANGERS = 10
"""Strangers' thumbs that stay of the side that most are on; of the other at least one less."""

_SAID = """
    CREATE TABLE judged.said AS
    SELECT n.turn_id, n.feedback_id, f.kind, f.created_at,
           CASE WHEN f.kind = 'edit' THEN if(f.correction IS NULL, NULL, 'corrected')
                WHEN f.value IS NULL OR isnan(f.value) THEN NULL
                WHEN f.kind = 'thumb' AND f.value <> 0 THEN if(f.value > 0, 'up', 'down')
                WHEN f.kind = 'verifier' THEN if(f.value >= 1, 'passed', 'failed') END AS side,
           CASE WHEN f."user" = t."user" THEN 'own'
                WHEN f."user" IS NULL OR u."user" IS NULL THEN 'stranger' ELSE 'known' END AS voice,
           f.annotator IS NOT DISTINCT FROM 'model' AS by_model, f."user",
           if(f.kind = 'verifier' AND list_contains($owned::VARCHAR[], f.name), f.name, NULL)
               AS verifier,
           f.kind = 'verifier' AND f.reference IS NOT NULL AS referred,
           if(f.kind = 'edit', hash(f.correction), NULL) AS wanted
    FROM judged.named n
    SEMI JOIN (SELECT turn_id FROM judged.named GROUP BY ALL HAVING count(*) > {many}) m
        USING (turn_id)
    JOIN judged.turns t USING (turn_id)
    JOIN (SELECT * FROM feedback {at}) f USING (feedback_id)
    LEFT JOIN (SELECT DISTINCT "user" FROM judged.turns) u ON u."user" = f."user"
"""
_LEFT_OUT = f"""
    CREATE TABLE judged.left_out AS
    WITH pointed AS (
        SELECT *, kind = 'thumb' AND side IS NOT NULL AND "user" IS NOT NULL AS thumbed,
               row_number() OVER (PARTITION BY turn_id, kind, by_model, "user", side
                                  ORDER BY created_at DESC, feedback_id DESC) AS again,
               if(kind = 'edit', row_number() OVER (
                   PARTITION BY turn_id, kind, by_model, voice, created_at, wanted
                   ORDER BY feedback_id), 0) AS twin,
               max(created_at) OVER (
                   PARTITION BY turn_id, kind, by_model, "user", side IS NULL) AS latest_at
        FROM judged.said),
    spoken AS (
        SELECT *, thumbed AND (again > 1 OR created_at < latest_at) AS spoke_again
        FROM pointed),
    latest AS (
        SELECT *, if(thumbed AND NOT spoke_again AND count(*) FILTER (NOT spoke_again) OVER (
                   PARTITION BY turn_id, kind, by_model, "user", side IS NULL) > 1, "user", NULL)
               AS torn
        FROM spoken),
    ranked AS (
        SELECT *, row_number() OVER (
                   sort ORDER BY created_at DESC, torn, twin, feedback_id DESC) AS late,
               row_number() OVER (sort ORDER BY created_at, torn, feedback_id) AS early,
               count(*) OVER sort AS alike,
               kind = 'thumb' AND voice = 'stranger' AND side IS NOT NULL AND NOT by_model
                   AND NOT spoke_again AND torn IS NULL AS one_voice
        FROM latest
        WINDOW sort AS (
            PARTITION BY turn_id, kind, side, voice, by_model, spoke_again, torn IS NULL, verifier,
                referred)),
    weighed AS (
        SELECT *, sum(alike) FILTER (one_voice AND late = 1 AND side = 'up') OVER turn AS up,
               sum(alike) FILTER (one_voice AND late = 1 AND side = 'down') OVER turn AS down
        FROM ranked WINDOW turn AS (PARTITION BY turn_id))
    SELECT turn_id, feedback_id, kind, side FROM weighed
    WHERE CASE WHEN spoke_again THEN true
               WHEN one_voice THEN late > if(
                   if(side = 'up', coalesce(up, 0) < coalesce(down, 0),
                      coalesce(down, 0) < coalesce(up, 0)), {_STRANGERS - 1}, {_STRANGERS})
               ELSE late > {_LATEST} AND early > {_FIRST} END
"""
_FLOODS = """
    CREATE TABLE judged.floods AS
    SELECT turn_id, 'left out: ' || string_agg(words, ', ' ORDER BY kind, side) AS words
    FROM (SELECT turn_id, kind, side, count(*) || ' ' || kind || coalesce(' ' || side, '') AS words
          FROM judged.left_out GROUP BY turn_id, kind, side)
    GROUP BY turn_id
"""


def find_floods(connection: duckdb.DuckDBPyConnection, profile: Profile, at: str) -> None:
    """Say which signals of which turns are left out; `at` is a DuckLake `AT (...)` clause."""
    owned = sorted({name for slot in profile.slots for name in slot.verifiers})
    connection.execute(_SAID.format(at=at, many=MANY), {"owned": owned})
    connection.execute(_LEFT_OUT)
    connection.execute(_FLOODS)
    connection.execute("DROP TABLE judged.said")
