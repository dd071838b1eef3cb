"""What a training run may be told. Free of torch, so that commands start fast."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_SEEDS = 2**32
"""NumPy takes no more."""


class TrainConfig(BaseModel):
    """Settings of one run that trains one slot's LoRA from the frozen base."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["sft"] = "sft"
    """How the adapter learns; `sft` imitates the completions."""
    r: int = Field(default=16, ge=1, le=512)
    """LoRA rank; an engine must be started with at least this `--max-lora-rank`."""
    alpha: int = Field(default=32, ge=1)
    """LoRA scale: the update is multiplied by alpha / r."""
    learning_rate: float = Field(default=4e-4, gt=0, le=1)
    """Peak rate, about ten times that of full fine-tuning (Schulman et al. 2025, LoRA Without
    Regret); falls linearly to zero."""
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    """Share of the steps over which the rate rises from zero."""
    epochs: int = Field(default=2, ge=1)
    """Passes over the rows."""
    batch_size: int = Field(default=8, ge=1)
    """Rows a forward pass."""
    grad_accum: int = Field(default=1, ge=1)
    """Forward passes a weight update."""
    max_length: int = Field(default=2048, ge=8)
    """Tokens of prompt and completion; a longer row is left out, counted under `too_long`."""
    seed: int = Field(default=0, ge=0, lt=MOST_SEEDS)
    """Initial weights and row order; the same seed gives the same bytes on one CPU."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads; None leaves torch's choice."""


class HeadConfig(BaseModel):
    """Settings of training a router head."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    width: int = Field(default=256, ge=1, le=256)
    """Of the two hidden layers; narrower where the base's hidden state is so large that the
    head would have a million parameters."""
    learning_rate: float = Field(default=1e-3, gt=0, le=1)
    """Of AdamW, without a schedule: early stopping ends the training."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Of AdamW."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Of the two hidden layers, in training only."""
    batch_size: int = Field(default=64, ge=1)
    """Rows a weight update."""
    epochs: int = Field(default=200, ge=1)
    """Passes over the rows at most."""
    patience: int = Field(default=20, ge=1)
    """Passes without a lower validation loss after which training stops."""
    min_rows: int = Field(default=32, ge=2)
    """Fewer training rows than this and no head is trained."""
