"""Did the traffic bear out what the gate forecast? Asked after a version got all traffic.

In: conversations of the champion before a promotion and of the new one since, and the report
that promoted it. Out: a `Forecast`: the gate's effect beside the difference in traffic, both
with intervals, and in words. Kept as `forecasts/<report key>.json`; more traffic replaces it.

The gate compares answers to the same items, traffic different conversations one after the
other, and only those that somebody judged. So the two need not agree to the point; what tells
is an interval that lies outside the other.
"""

import math
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from promotion.canary.trials import Promoted
from promotion.gate import GateReport
from serving.disk import write_atomic
from serving.records import AdapterVersion, Record, canonical_json
from traces.attribution.intervals import wilson

Status = Literal["insufficient", "worse", "less", "open", "as forecast", "more"]
LEAST = 30
"""Judged conversations on either side below which nothing is said."""


class Forecast(Record):
    """What the gate said and what came."""

    slot: str
    version: str
    """Served name of the new champion."""
    report_key: str
    forecast: float | None
    """The gate's effect on its primary suite; None if it compared nothing."""
    forecast_lower: float | None
    forecast_upper: float | None
    observed: float | None
    """Success rate of the new champion's conversations minus that of the one before."""
    lower: float | None
    """95 % limits of `observed`."""
    upper: float | None
    before: int
    """Judged conversations of the champion before."""
    now: int
    whole: bool
    """Whether these are all that the new champion is watched for."""
    status: Status
    message: str

    @property
    def gained(self) -> bool | None:
        """Whether traffic shows a gain; None while it shows neither that nor its absence."""
        if self.lower is not None and self.lower > 0:
            return True
        return False if self.status in ("worse", "less") else None


def compare_with(
    promoted: Promoted,
    report: GateReport,
    before: list[float],
    now: list[float],
    *,
    whole: bool = False,
) -> Forecast:
    """Compare success rates of conversations, each in [0, 1], with a gate report."""
    said = report.primary.comparison
    observed = difference(before, now) if min(len(before), len(now)) >= LEAST else None
    limits = None if said is None else (said.lower, said.upper)
    status = _status(limits, observed)
    result = Forecast(
        slot=promoted.slot,
        version=AdapterVersion(slot=promoted.slot, digest=promoted.digest).name,
        report_key=report.key,
        forecast=said and said.effect,
        forecast_lower=said and said.lower,
        forecast_upper=said and said.upper,
        observed=observed and observed[0],
        lower=observed and observed[1],
        upper=observed and observed[2],
        before=len(before),
        now=len(now),
        whole=whole,
        status=status,
        message="",
    )
    return result.model_copy(update={"message": _in_words(result)})


def difference(before: list[float], now: list[float]) -> tuple[float, float, float]:
    """Return the difference of two means of values in [0, 1] with its 95 % limits.

    Newcombe's hybrid of two Wilson intervals (Statistics in Medicine 17, 1998, method 10); means
    of conversations vary no more than shares do.
    """
    old, new = sum(before) / len(before), sum(now) / len(now)
    (old_low, old_high), (new_low, new_high) = (
        wilson(sum(before), len(before)),
        wilson(sum(now), len(now)),
    )
    effect = new - old
    down = math.hypot(new - new_low, old_high - old)
    up = math.hypot(new_high - new, old - old_low)
    return effect, effect - down, effect + up


def keep_forecast(home: Path, forecast: Forecast) -> None:
    """Write a forecast in place of an earlier one of the same promotion."""
    data = (canonical_json(forecast.model_dump(mode="json")) + "\n").encode()
    path = _path(home, forecast.report_key)
    if not path.is_file() or path.read_bytes() != data:
        write_atomic(path, data)


def kept_forecast(home: Path, report_key: str) -> Forecast | None:
    """Return what was found of a promotion, None if nothing was, or it is damaged."""
    try:
        return Forecast.model_validate_json(_path(home, report_key).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def _path(home: Path, report_key: str) -> Path:
    return home / "forecasts" / f"{report_key}.json"


def _status(
    said: tuple[float, float] | None, observed: tuple[float, float, float] | None
) -> Status:
    if observed is None:
        return "insufficient"
    _, lower, upper = observed
    if upper < 0:
        return "worse"
    if said is not None and upper < said[0]:
        return "less"
    if said is not None and lower > said[1]:
        return "more"
    return "as forecast" if lower > 0 else "open"


def _in_words(found: Forecast) -> str:
    said = "the gate compared nothing"
    if found.forecast is not None:
        said = f"forecast {_points(found.forecast, found.forecast_lower, found.forecast_upper)}"
    seen = f"{found.before} and {found.now} judged conversations"
    if found.status == "insufficient":
        return f"{said}; {seen}, of each at least {LEAST} are needed."
    told = {
        "worse": "the new champion is worse than the one before",
        "less": "less than forecast",
        "open": "neither a gain nor its absence is shown yet",
        "as forecast": "a gain, as forecast",
        "more": "more than forecast",
    }[found.status]
    return f"{said}, traffic {_points(found.observed, found.lower, found.upper)} on {seen}: {told}."


def _points(effect: float | None, lower: float | None, upper: float | None) -> str:
    assert effect is not None
    assert lower is not None
    assert upper is not None
    return f"{100 * effect:+.1f} points [{100 * lower:+.1f}, {100 * upper:+.1f}]"
