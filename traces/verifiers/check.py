"""The result type all verifiers share."""

from dataclasses import dataclass


def writable(text: str) -> str:
    """Return a text as rows, files and ids can hold it: half of a surrogate pair as its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class Check:
    """A verifier's finding about one answer: pure, repeatable, no opinion."""

    passed: bool | None
    """None: the verifier could not judge (it crashed, hung, or what it checks against makes no
    sense). That says nothing of the answer and never counts as a failure."""
    detail: str
    """One line saying what was right or wrong, or why there is no verdict; always `writable`."""
    score: float | None = None
    """In [0, 1], from a verifier that grades; None where passed or not is all there is."""

    def __post_init__(self) -> None:
        # What is told of was read out of an answer's JSON, where anything may stand.
        object.__setattr__(self, "detail", writable(self.detail))

    @property
    def value(self) -> float | None:
        """The score: the grade where there is one, else 1 or 0; None where nothing was judged."""
        if self.passed is None:
            return None
        return float(self.passed) if self.score is None else self.score
