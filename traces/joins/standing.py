"""What stands and what was superseded: attempts of one call, and turns asked again.

A hop or turn that a later one `supersedes` stays in the lake and is shown, but
teaches nothing, is nobody's failure and counts in no success rate. Everyone who
judges or trains asks here, or finds the outcome `superseded`.
"""

from collections.abc import Iterable, Sequence

from serving.records import Hop

SUPERSEDED = "superseded"
"""The rule of the outcome of a turn that was asked again."""


def superseded_hops(hops: Iterable[Hop]) -> frozenset[str]:
    """Return the ids of the hops that another one of a turn replaces."""
    return frozenset(hop.supersedes for hop in hops if hop.supersedes is not None)


def standing(hops: Sequence[Hop]) -> tuple[Hop, ...]:
    """Return the hops of a turn without those that a later attempt replaces."""
    gone = superseded_hops(hops)
    return tuple(hop for hop in hops if hop.hop_id not in gone) if gone else tuple(hops)


def superseded_turns_sql(at: str = "") -> str:
    """Render the query for the ids of all turns that were asked again.

    `at` is a DuckLake `AT (...)` clause.
    """
    return f"SELECT supersedes FROM turns {at} WHERE supersedes <> turn_id"  # noqa: S608
