"""The result type all verifiers share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """A verifier's finding about one answer: pure, repeatable, no opinion."""

    passed: bool
    detail: str
    """One line saying what was right or wrong."""
