"""Settings of the gate: how sure, by how much, on how many items."""

from pydantic import BaseModel, ConfigDict, Field


class GateConfig(BaseModel):
    """Decision rules of one gate run; they are copied into its report."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    """One-sided error level of the primary test and of each guard."""
    margin: float = Field(default=0.05, gt=0, le=1)
    """Largest loss of mean score a guard suite may hide (non-inferiority margin)."""
    min_items: int = Field(default=30, ge=2)
    """Fewer items than this give INCONCLUSIVE, whatever the scores."""
    power: float = Field(default=0.8, gt=0.5, lt=1)
    """Power at which the minimum detectable effect is stated."""
