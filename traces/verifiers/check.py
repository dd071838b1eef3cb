"""The result type all verifiers share."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """A verifier's finding about one answer: pure, repeatable, no opinion."""

    passed: bool | None
    """None: the verifier could not judge (it crashed, hung, or what it checks against makes no
    sense). That says nothing of the answer and never counts as a failure."""
    detail: str
    """One line saying what was right or wrong, or why there is no verdict."""
