"""Limits and thresholds of curation; free of heavy imports.

The whole object is stored in each manifest and is part of the dataset's digest.
"""

from pydantic import BaseModel, ConfigDict, Field


class CurationConfig(BaseModel):
    """What may become a training row, and how many rows a dataset needs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_confidence: float = Field(default=0.6, ge=0, le=1)
    """A failure blamed with less confidence than this teaches nothing."""
    holdout_percent: int = Field(default=15, ge=0, le=50)
    """Percent of users (of conversations, where no user is known) never trained on."""
    max_prompt_chars: int = Field(default=12_000, gt=0)
    """Messages and tools together; longer rows are dropped, never cut."""
    max_completion_chars: int = Field(default=4_000, gt=0)
    """Text and tool-call arguments of the completion."""
    min_rows: int = Field(default=16, ge=1)
    """Fewer training rows than this and no dataset is made."""
    thumb_weight: float = Field(default=0.5, gt=0, le=1)
    """Weight of a row that only a thumb vouches for; all other rows weigh 1."""
    replay_share: float = Field(default=0.25, ge=0, lt=1)
    """Most of the training rows that may be replay: a slot's own summaries, which it must not
    forget to write while it learns to answer (self-generated replay, arXiv 2605.26097)."""
    max_duty_ratio: float = Field(default=4.0, ge=1)
    """For the router slot: most training rows of one duty for each row of the other."""
