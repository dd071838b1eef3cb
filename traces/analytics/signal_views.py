"""The view on how far thumbs, edits and implicit signals are to be trusted.

Each is a noisy labeller: of turns that verifiers judged (tier A) it is counted how often it spoke
where it should have (sensitivity) and was silent where it should have been (specificity). From
both follows what share of the other turns failed, although only the signal was seen (W. J. Rogan,
B. Gladen, Am. J. Epidemiol. 107, 1978), if it behaves there as on verified turns.
"""

# Everything put into these texts is declared here.
# ruff: noqa: S608

from traces.analytics.view import View

LEAST_INFORMATION = 0.1
"""Least sensitivity + specificity - 1 for a corrected share: its error is divided by it."""

SIGNALS = {
    "retry": "failure",
    "rephrase": "failure",
    "correction": "failure",
    "abandonment": "failure",
    "thanks": "success",
    "thumb_down": "failure",
    "thumb_up": "success",
    "edit": "failure",
    "judge_fail": "failure",
    "judge_pass": "success",
}
"""What each signal means."""

_KINDS = ", ".join(f"('{name}', '{means}')" for name, means in SIGNALS.items())
_WORD = """CASE WHEN s ->> 'annotator' = 'model'
                     THEN CASE WHEN (s ->> 'value')::DOUBLE < 1 THEN 'judge_fail'
                               WHEN (s ->> 'value')::DOUBLE >= 1 THEN 'judge_pass' END
                     WHEN s ->> 'kind' = 'thumb'
                     THEN CASE WHEN (s ->> 'value')::DOUBLE < 0 THEN 'thumb_down'
                               WHEN (s ->> 'value')::DOUBLE > 0 THEN 'thumb_up' END
                     ELSE s ->> 'kind' END"""

VIEWS = (
    View(
        "v_signal_quality",
        "How far each signal is to be trusted: of verified turns, how often it spoke where what "
        "it means was so (`sensitivity`) and was silent where not (`specificity`), with 95 % "
        "intervals, `precision`, and what share of the unverified turns failed by it "
        "(Rogan-Gladen), or why that is not told (`refused`).",
        f"""
        WITH judged AS (
            SELECT turn_id, success, signals, rule = 'verified' AS verified
            FROM outcomes WHERE rule <> 'superseded'),
        totals AS (
            SELECT count(*) FILTER (verified AND NOT success) AS failed,
                   count(*) FILTER (verified AND success) AS succeeded,
                   count(*) FILTER (NOT verified) AS unverified FROM judged),
        words AS (
            SELECT DISTINCT turn_id, success, verified, {_WORD} AS signal
            FROM (SELECT turn_id, success, verified, unnest(CAST(signals AS JSON[])) AS s
                  FROM judged WHERE signals <> '[]')),
        counts AS (
            SELECT signal, count(*) FILTER (verified AND NOT success) AS on_failed,
                   count(*) FILTER (verified AND success) AS on_succeeded,
                   count(*) FILTER (NOT verified) AS on_unverified
            FROM words GROUP BY signal),
        seen AS (
            SELECT k.signal, k.means, t.*, coalesce(c.on_failed, 0) AS on_failed,
                   coalesce(c.on_succeeded, 0) AS on_succeeded,
                   coalesce(c.on_unverified, 0) AS on_unverified,
                   k.means = 'failure' AS doubts,
                   if(doubts, failed, succeeded) AS n_se, if(doubts, succeeded, failed) AS n_sp,
                   if(doubts, on_failed, on_succeeded) AS right_said,
                   n_sp - if(doubts, on_succeeded, on_failed) AS right_silent
            FROM (VALUES {_KINDS}) k(signal, means) CROSS JOIN totals t
            LEFT JOIN counts c USING (signal)),
        rates AS (
            SELECT *, right_said / nullif(n_se, 0) AS sensitivity,
                   wilson_low(right_said, n_se) AS sensitivity_low_95,
                   wilson_high(right_said, n_se) AS sensitivity_high_95,
                   right_silent / nullif(n_sp, 0) AS specificity,
                   wilson_low(right_silent, n_sp) AS specificity_low_95,
                   wilson_high(right_silent, n_sp) AS specificity_high_95,
                   right_said / nullif(on_failed + on_succeeded, 0) AS precision,
                   sensitivity + specificity - 1 AS information,
                   on_unverified / nullif(unverified, 0) AS said_share,
                   CASE WHEN failed = 0 THEN 'no verified failure'
                        WHEN succeeded = 0 THEN 'no verified success'
                        WHEN unverified = 0 THEN 'no unverified turn'
                        WHEN on_failed + on_succeeded = 0 THEN 'not seen on a verified turn'
                        WHEN information < {LEAST_INFORMATION}
                        THEN 'sensitivity + specificity - 1 is below {LEAST_INFORMATION}'
                        WHEN sensitivity_low_95 + specificity_low_95 <= 1
                        THEN 'too few verified turns to tell it from chance' END AS refused
            FROM seen)
        SELECT signal, means, failed, succeeded, on_failed, on_succeeded, sensitivity,
               sensitivity_low_95, sensitivity_high_95, specificity, specificity_low_95,
               specificity_high_95, precision, unverified, on_unverified, information, refused,
               CASE WHEN refused IS NULL THEN least(1, greatest(0,
                    CASE WHEN doubts THEN (said_share + specificity - 1) / information
                         ELSE 1 - (said_share + specificity - 1) / information END))
               END AS failed_share
        FROM rates
        """,
    ),
)
