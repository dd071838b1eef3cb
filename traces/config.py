"""Settings of the lake and of attribution; free of heavy imports."""

from functools import partial
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from serving.addresses import refuse_secrets
from serving.config import MOST_DAYS

JUDGE_KEY = "MOL_JUDGE_KEY"
"""Environment variable with the API key of the judge's server."""
JudgeAddress = Annotated[str, AfterValidator(partial(refuse_secrets, key=JUDGE_KEY))]


class LakeConfig(BaseModel):
    """Settings of the lake; its address is settled by the first command that uses the home."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    catalog: str | None = None
    """PostgreSQL of the lake's catalog, as `postgres:dbname=lake host=db` or
    `postgresql://user@db/lake`; None for a SQLite file in the home. The password is PGPASSWORD in
    the environment."""
    data: str | None = None
    """Object storage of the lake's files, as `s3://bucket/prefix`; None for a folder in the home.
    Keys are AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, another service is AWS_ENDPOINT_URL."""
    keep_days: int | None = Field(default=None, ge=1, le=MOST_DAYS)
    """Upkeep deletes what is older than so many days; None keeps everything. Records without a
    time of their own stay."""
    keep_snapshots_days: int = Field(default=7, ge=0, le=MOST_DAYS)
    """Days that the lake can be read as it was; what a dataset was made from stays longer."""
    keep_files_hours: int = Field(default=24, ge=0, le=24 * MOST_DAYS)
    """Hours that a file which nothing refers to any more stays, for readers that began before."""
    target_file_mb: int = Field(default=128, ge=1)
    """Size that upkeep merges small files up to."""
    rewrite_deleted_share: float = Field(default=0.3, gt=0, le=1)
    """Upkeep rewrites a file of which more than this share is deleted."""


class AttributionConfig(BaseModel):
    """How failures are explained, beyond what their own turns show."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int = Field(default=8, ge=1)
    """Fresh answers of each slot to a replayed turn; the failed one is not among them."""
    false_router: float = Field(default=0.05, gt=0, lt=1)
    """Most replayed turns blamed on the router where all slots are equally good."""
    replay_budget: int = Field(default=2000, ge=0)
    """Most engine calls of one replay."""
    replay_temperature: float = Field(default=0.7, gt=0, le=2)
    """Sampling temperature for turns that were answered greedily; others keep their own."""
    judge: JudgeAddress | None = None
    """Address of an OpenAI-compatible server whose model judges; None asks none. Its API key is
    MOL_JUDGE_KEY in the environment."""
    judge_model: str | None = None
    """Model to ask there; None takes the first it lists."""
    judge_budget: int = Field(default=1000, ge=0)
    """Most engine calls of one run of the judge; a turn takes two."""
    run_code: int = Field(default=0, ge=0)
    """Most answers of one run whose Python is run against the tests of a verifier that had crashed,
    in the sandbox, a second each; what was found is kept. 0 runs none."""
    cluster_similarity: float = Field(default=0.3, gt=0, le=1)
    """Requests are similar from this cosine of their TF-IDF vectors on."""
