"""How far two judges of the same turns agree beyond chance, and how far one changes with the order.

Pure: counts in, figures out. Source: J. Cohen, Educ. Psychol. Meas. 20, 1960; the variance is that
of J. L. Fleiss, J. Cohen, B. S. Everitt, Psychol. Bull. 72, 1969. The interval is computed with
half a turn added to each cell: where all turns agree the plain one has no width, however few.
"""

from collections.abc import Iterable
from math import sqrt

from serving.records import Record
from traces.attribution.intervals import Z_95, wilson

LEAST_TURNS = 30
"""Verified turns with a verdict that a judge is measured on at least."""
LEAST_KAPPA = 0.4
"""Lower end of the interval of kappa from which on a judge counts ("moderate" of Landis and
Koch, Biometrics 33, 1977)."""
MOST_FLIPS = 0.25
"""Share of turns judged otherwise when the options change places up to which a judge counts."""


class Agreement(Record):
    """What was measured of one judge on verified turns."""

    turns: int
    """Turns that it was asked about in both orders."""
    judged: int
    """Those on which both orders gave the same verdict; kappa is about these."""
    agreed: int
    kappa: float | None
    """None where all verdicts, its own or the verifiers', are the same: chance explains all."""
    kappa_low_95: float | None
    kappa_high_95: float | None
    flips: int
    """Turns on which the verdict followed the order of the options."""
    flip_share: float | None
    flip_low_95: float | None
    flip_high_95: float | None

    @property
    def refused(self) -> str | None:
        """Why the judge does not count, None if it does."""
        if self.judged < LEAST_TURNS:
            return (
                f"it gave a verdict on {self.judged} verified turns, at least {LEAST_TURNS} "
                "are needed"
            )
        if self.flip_share is not None and self.flip_share > MOST_FLIPS:
            return (
                f"{self.flip_share:.0%} of its verdicts follow the order of the options, at "
                f"most {MOST_FLIPS:.0%} may"
            )
        if self.kappa is None or self.kappa_low_95 is None:
            return "all its verdicts, or all of the verifiers, are the same"
        if self.kappa_low_95 < LEAST_KAPPA:
            return (
                f"its agreement with verifiers is kappa {self.kappa:.2f} "
                f"[{self.kappa_low_95:.2f}, {self.kappa_high_95:.2f}] on {self.judged} turns, "
                f"the lower end must be {LEAST_KAPPA} or more"
            )
        return None


def agreement(verdicts: Iterable[tuple[bool, bool | None, bool]]) -> Agreement:
    """Measure a judge by (whether the turn succeeded, its verdict or None, whether it flipped)."""
    rows = list(verdicts)
    cells = [[0, 0], [0, 0]]
    for truth, verdict, _ in rows:
        if verdict is not None:
            cells[truth][verdict] += 1
    judged = sum(map(sum, cells))
    flips = sum(flipped for _, _, flipped in rows)
    asked = judged + flips
    kappa = _kappa([[float(n) for n in row] for row in cells]) if judged else None
    low = high = None
    if kappa is not None:
        smoothed = [[n + 0.5 for n in row] for row in cells]
        centre, half = _kappa(smoothed) or 0.0, Z_95 * _standard_error(smoothed)
        low, high = max(-1.0, min(kappa, centre - half)), min(1.0, max(kappa, centre + half))
    flip_low, flip_high = wilson(flips, asked) if asked else (None, None)
    return Agreement(
        turns=len(rows),
        judged=judged,
        agreed=cells[0][0] + cells[1][1],
        kappa=kappa,
        kappa_low_95=low,
        kappa_high_95=high,
        flips=flips,
        flip_share=flips / asked if asked else None,
        flip_low_95=flip_low,
        flip_high_95=flip_high,
    )


def _shares(cells: list[list[float]]) -> tuple[list[list[float]], list[float], list[float], float]:
    n = sum(map(sum, cells))
    p = [[cell / n for cell in row] for row in cells]
    rows = [sum(row) for row in p]
    columns = [p[0][j] + p[1][j] for j in (0, 1)]
    return p, rows, columns, n


def _kappa(cells: list[list[float]]) -> float | None:
    p, rows, columns, _ = _shares(cells)
    chance = sum(r * c for r, c in zip(rows, columns, strict=True))
    return None if chance >= 1.0 else (p[0][0] + p[1][1] - chance) / (1 - chance)


def _standard_error(cells: list[list[float]]) -> float:
    p, rows, columns, n = _shares(cells)
    chance = sum(r * c for r, c in zip(rows, columns, strict=True))
    kappa = (p[0][0] + p[1][1] - chance) / (1 - chance)
    on = sum(p[i][i] * (1 - (rows[i] + columns[i]) * (1 - kappa)) ** 2 for i in (0, 1))
    off = sum(p[i][1 - i] * (columns[i] + rows[1 - i]) ** 2 for i in (0, 1)) * (1 - kappa) ** 2
    rest = (kappa - chance * (1 - kappa)) ** 2
    return sqrt(max(0.0, on + off - rest) / n) / (1 - chance)
