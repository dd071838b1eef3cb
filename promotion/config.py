"""Settings of the gate: how sure, by how much, on how many items."""

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field, field_validator

DEFAULT_MARGINS: Mapping[str, float] = {
    "skill": 0.02,
    "route": 0.005,
    "handover": 0.03,
    "format": 0.03,
    "living": 0.03,
    "safety": 0.0,
}
"""Largest loss of mean score that a guard suite of each kind may hide: 2 points in general, 3
where suites are small, half a point of routing, nothing of what must pass."""


class GateConfig(BaseModel):
    """Decision rules of one gate run; they are copied into its report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """One-sided error level of all attempts on one sealed set together, however many there are;
    attempt k is tested at 6 alpha / (pi^2 k^2)."""
    margins: dict[str, float] = Field(default_factory=lambda: dict(DEFAULT_MARGINS))
    """Non-inferiority margins by kind or name of suite, as shares of the full score; 0 says that
    every item must pass."""
    min_items: int = Field(default=30, ge=2)
    """Fewer items than this give INCONCLUSIVE, whatever the scores."""
    power: float = Field(default=0.8, gt=0.5, lt=1)
    """Power at which the minimum detectable effect and the sizes that guards need are stated."""
    samples: int = Field(default=1, ge=1)
    """Answers to each item from each arm; an item's score is their mean."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """Temperature of the answers; more than one sample needs one above 0."""
    latency_items: int = Field(default=32, ge=0)
    """Items of the primary suite that both arms answer one at a time, to compare durations; 0
    compares none, and then nothing is known about speed."""
    latency_margin: float = Field(default=0.25, gt=0)
    """Largest slowdown that may stay hidden, as a share: 0.25 is a quarter slower."""
    drift_items: int = Field(default=16, ge=0)
    """Prompts of the primary suite on which the distance from the base is measured; 0: none."""
    kl_limit: float | None = Field(default=None, gt=0)
    """Nats a token from the base above which a challenger fails; None only reports them."""

    @field_validator("margins")
    @classmethod
    def _shares(cls, margins: dict[str, float]) -> dict[str, float]:
        wrong = {name: margin for name, margin in margins.items() if not 0 <= margin < 1}
        if wrong:
            raise ValueError(f"margins must be at least 0 and below 1, not {wrong!r}")
        return margins

    def margin(self, suite: str, kind: str) -> float:
        """Return the margin of a suite: its own, else that of its kind."""
        small = DEFAULT_MARGINS["living"]
        return self.margins.get(suite, self.margins.get(kind, DEFAULT_MARGINS.get(kind, small)))
