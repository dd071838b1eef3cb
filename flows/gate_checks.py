"""What a gate's settings must be before anything is trained or asked.

In: settings, and suites that are built already. Out: nothing, or the error that says what to
correct.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flows import stages
from flows.config import Settings
from serving.errors import MolError

if TYPE_CHECKING:
    from promotion.suites.suite import Suite


class GateInvalid(MolError, ValueError):
    """The gate's settings do not fit together or name what is not there."""


def check_rules(settings: Settings, built: "Iterable[Suite]" = ()) -> None:
    """Refuse rules that no gate could go by: of samples, and margins of what is not there.

    A margin may be that of any slot's suite, whichever is challenged, of whatever size. Suites
    that are not among the `built` are built where a margin bears another name.

    Raises:
        GateInvalid: if the gate's settings do not fit together.
    """
    from promotion.config import DEFAULT_MARGINS
    from promotion.suites.build import build_suites, has_suite

    gate, suites = settings.gate, settings.suites
    if gate.samples > 1 and gate.temperature == 0:
        raise GateInvalid(
            f"[gate] samples = {gate.samples!r} would all be the same answer at "
            "temperature 0. Set '--gate.temperature 0.7', or one sample."
        )
    known = {suite.name for suite in built}
    named = set(gate.margins) - set(DEFAULT_MARGINS)
    if named <= known:
        return
    profile = stages.profile_in_force(settings)
    for slot in profile.labels:
        if has_suite(profile, slot, suites):
            known |= {s.name for s in build_suites(profile, slot, settings.seed, suites)}
        if named <= known:
            return
    raise GateInvalid(
        f"[gate.margins] names {min(named - known)!r}, which is neither a kind of suite "
        f"({', '.join(DEFAULT_MARGINS)}) nor a suite ({', '.join(sorted(known))}). "
        "Correct it and run it again."
    )
