"""Views on what became of turns: success rates with intervals, tasks, conversations, blame.

Turns that were asked again are in none of them. Turns that nobody judged, canary traffic,
engine errors and answers cut at their token limit are counted apart from the rates: they
are no failures of the model that serves, see `traces.attribution.apart`. So are failures that
show by themselves where a success would not have (`one_sided`). Intervals are
Wilson's at 95 % (E. B. Wilson, JASA 22, 1927): they hold near 0 and 1 and for a handful of
turns, where the normal approximation does not.
"""

# Everything put into these texts is declared here.
# ruff: noqa: S608

from traces.analytics.view import Macro, View
from traces.attribution.apart import apart_sql, one_sided_sql

_Z = "1.959963984540054"
"""97.5 % quantile of the normal distribution."""

_CENTRE = f"k + {_Z} * {_Z} / 2"
_HALF = f"{_Z} * sqrt(k * (n - k) / n + {_Z} * {_Z} / 4)"
_WHOLE = f"n + {_Z} * {_Z}"

# Where none or all succeeded one end is exactly 0 or 1, which the formula rounds to below.
MACROS = (
    Macro(
        "wilson_low",
        "Lower end of the 95 % interval of a share: successes, of how many.",
        f"(k, n) AS CASE WHEN n > 0 THEN CASE WHEN k = 0 THEN 0.0"
        f" ELSE ({_CENTRE} - {_HALF}) / ({_WHOLE}) END END",
    ),
    Macro(
        "wilson_high",
        "Upper end of the 95 % interval of a share: successes, of how many.",
        f"(k, n) AS CASE WHEN n > 0 THEN CASE WHEN k = n THEN 1.0"
        f" ELSE ({_CENTRE} + {_HALF}) / ({_WHOLE}) END END",
    ),
)

_JUDGED = """FROM turns t LEFT JOIN outcomes o USING (turn_id)
        WHERE o.rule IS DISTINCT FROM 'superseded'"""

_APART = apart_sql()
_ONE_SIDED = one_sided_sql()
_COUNTS = f"""count(*) AS turns,
               count(*) FILTER (NOT t.canary AND o.success IS NOT NULL AND {_APART} IS NULL
                   AND NOT {_ONE_SIDED}) AS judged,
               count(*) FILTER (NOT t.canary AND o.success) AS succeeded,
               count(*) FILTER (NOT o.success AND {_APART} IS NULL) AS failed,
               count(*) FILTER (NOT t.canary AND o.success IS NULL) AS unjudged,
               count(*) FILTER (NOT t.canary AND {_APART} IS NULL AND {_ONE_SIDED}) AS one_sided,
               count(*) FILTER (t.canary) AS canary,
               count(*) FILTER ({_APART} = 'engine') AS engine_errors,
               count(*) FILTER ({_APART} = 'truncated') AS truncated"""

_RATE = """succeeded / nullif(judged, 0) AS success_rate,
               wilson_low(succeeded, judged) AS low_95, wilson_high(succeeded, judged) AS high_95"""


def _success(name: str, doc: str, *columns: str) -> View:
    """Return the view of success rates by some columns of the turns."""
    keys = ", ".join(f"t.{column}" for column in columns)
    return View(
        name,
        f"{doc}: turns, those judged, success rate with its 95 % interval; canary traffic, engine "
        "errors, cut answers and failures that only show by themselves counted apart; asked-again "
        "left out.",
        f"""
        SELECT *, {_RATE}
        FROM (SELECT {keys}, {_COUNTS}
        {_JUDGED} GROUP BY ALL)
        """,
    )


VIEWS = (
    _success("v_success_by_slot", "Success by slot", "slot"),
    _success("v_success_by_version", "Success by slot and version", "slot", "digest"),
    _success("v_success_by_day", "Success by day, slot and version", "day", "slot", "digest"),
    _success("v_success_by_workload", "Success by workload and slot", "workload", "slot"),
    _success(
        "v_success",
        "Success by day, slot, version and workload, to group as you like (wilson_low and "
        "wilson_high give the interval of sums)",
        "day",
        "slot",
        "digest",
        "workload",
    ),
    View(
        "v_success_of_canaries",
        "Success of canary traffic by slot and version, which no other rate counts.",
        f"""
        SELECT *, {_RATE}
        FROM (SELECT t.slot, t.digest, count(*) AS turns,
                     count(o.success) FILTER (NOT {_ONE_SIDED}) AS judged,
                     count(*) FILTER (o.success) AS succeeded
              {_JUDGED} AND t.canary GROUP BY ALL)
        """,
    ),
    View(
        "v_conversations",
        "One row a conversation: who, when, its turns and what became of them; `success` if all "
        "its judged turns succeeded.",
        f"""
        SELECT t.conversation_id, any_value(t.workload) AS workload, any_value(t.task) AS task,
               any_value(t."user") AS user_id, min(t.day) AS day,
               min(t.started_at) AS started_at, max(t.started_at) AS last_turn_at,
               {_COUNTS}, bool_and(o.success) AS success
        {_JUDGED} GROUP BY t.conversation_id
        """,
    ),
    View(
        "v_tasks",
        "Same task tried several times, one row a workload and task: attempts (conversations), "
        "how many passed, and whether all, some (`mixed`) or none did.",
        f"""
        SELECT workload, task, count(*) AS attempts, count(success) AS judged,
               count(*) FILTER (success) AS passed, count(*) FILTER (NOT success) AS failed,
               passed / nullif(judged, 0) AS pass_rate,
               CASE WHEN judged = 0 THEN 'unjudged' WHEN passed = judged THEN 'all'
                    WHEN passed = 0 THEN 'none' ELSE 'mixed' END AS passes
        FROM (SELECT t.workload, t.task,
                     bool_and(o.success) FILTER (NOT {_ONE_SIDED}) AS success
              {_JUDGED} AND t.task IS NOT NULL
              GROUP BY t.workload, t.task, t.conversation_id)
        GROUP BY workload, task
        """,
    ),
    View(
        "v_routing",
        "Routing confusion: slot that answered against slot that should have, by decision.",
        """
        SELECT t.decision, t.slot AS answered_by,
               CASE WHEN b.klass = 'router' THEN b.right_slot
                    ELSE coalesce(b.right_slot, t.slot) END AS should_be,
               count(*) AS turns, count(*) FILTER (o.success) AS succeeded,
               count(*) FILTER (NOT o.success) AS failed
        FROM turns t LEFT JOIN outcomes o USING (turn_id) LEFT JOIN blame b USING (turn_id)
        WHERE o.rule IS DISTINCT FROM 'superseded' GROUP BY ALL
        """,
    ),
    View(
        "v_blame",
        "Failed or suspect turns by blame class, slot, the slot that should have answered, what "
        "found it and what a replay said.",
        """
        SELECT b.klass, b.slot, b.right_slot, b.method, b.verdict, count(*) AS turns,
               avg(b.confidence) AS mean_confidence
        FROM blame b GROUP BY ALL
        """,
    ),
    View(
        "v_blame_by_day",
        "Failed or suspect turns by day, the version that answered, blame class and slot.",
        """
        SELECT t.day, t.slot AS answered_by, t.digest, b.klass, b.slot, count(*) AS turns
        FROM blame b JOIN turns t USING (turn_id) GROUP BY ALL
        """,
    ),
)
