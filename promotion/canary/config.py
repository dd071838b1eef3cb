"""Settings of canaries: how they grow, and what ends them."""

from pydantic import BaseModel, ConfigDict, Field, field_validator


class CanaryConfig(BaseModel):
    """How a version that passed the gate gets more traffic, and when it loses it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: bool = False
    """Whether a cycle gives what passed the gate the first step of the traffic, instead of all
    of it at once."""
    auto_advance: bool = False
    """Whether a canary goes on to the next step, and in the end to all traffic, without a
    person's word. A hold stops it all the same, and harm always ends a canary by itself."""
    steps: tuple[float, ...] = (5.0, 20.0, 50.0)
    """Percent of the conversations, step by step; after the last one come all of them."""
    min_pairs: int = Field(default=200, ge=1)
    """Pairs with an outcome that a step needs before the next one; fewer are insufficient."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """Chance that a version that does no harm is ever called harmful, by all guards together."""
    quiet_s: float = Field(default=1800, ge=0, le=30 * 24 * 3600)
    """Seconds without a turn after which a conversation has ended and counts."""
    latency_tolerance: float = Field(default=0.05, ge=0, lt=1)
    """How much more often than the champion a version may exceed the champion's 95th percentile
    of call time."""
    watch_conversations: int = Field(default=1000, ge=1)
    """Conversations of a new champion that are watched for harm after it got all traffic."""

    @field_validator("steps")
    @classmethod
    def _grow(cls, steps: tuple[float, ...]) -> tuple[float, ...]:
        if not steps or list(steps) != sorted(set(steps)) or not 0 < steps[0] <= steps[-1] < 100:
            raise ValueError("steps must grow, each above 0 and below 100 percent")
        return steps

    def after(self, percent: float) -> float:
        """Return the step after this part of the traffic; 100 after the last one."""
        return next((step for step in self.steps if step > percent), 100.0)
