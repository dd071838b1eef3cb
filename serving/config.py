"""Settings of the MoL server. Keys are not among them: they come from the environment."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from serving.addresses import ENGINE_KEY, refuse_secrets

MOST_DAYS = 36_500
"""A century: what is older has no date that can be reckoned with."""
EngineAddress = Annotated[str, AfterValidator(partial(refuse_secrets, key=ENGINE_KEY))]


def _split(addresses: Any) -> Any:
    if not isinstance(addresses, str):
        return addresses
    return tuple(address.strip() for address in addresses.split(","))


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RouterConfig(_Section):
    """How a turn finds its slot."""

    mode: Literal["constrained", "tool", "head", "rules"] = "constrained"
    """`constrained`: the router slot writes one legal label; `tool`: it calls `change_model`;
    `head`: a small trained network over the base's hidden state; `rules`: keywords alone."""
    min_confidence: float = Field(default=0.0, ge=0.0, le=1.0)
    """Below it the base model answers; 0 never."""
    epsilon: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of turns whose slot is drawn evenly from all, with its propensity logged."""
    embeddings: EngineAddress | None = None
    """Address of a server whose `/v1/embeddings` tells the base's hidden state, for `head`;
    None asks the engine itself."""


class LimitsConfig(_Section):
    """How much one server takes on."""

    max_body_bytes: int = Field(default=8 << 20, ge=1024)
    """A larger request is refused with 413."""
    max_running: int = Field(default=256, ge=1)
    """Requests worked on at once."""
    max_waiting: int = Field(default=512, ge=0)
    """Requests that wait for one of those; further ones are refused with 429."""
    max_wait_s: float = Field(default=30.0, gt=0)
    """One that waited longer is refused with 429."""


class TimeoutConfig(_Section):
    """How long anything may take."""

    connect_s: float = Field(default=5.0, gt=0)
    """To reach the engine."""
    idle_s: float = Field(default=120.0, gt=0)
    """Between two pieces from the engine."""
    hop_s: float = Field(default=600.0, gt=0)
    """One engine call."""
    body_s: float = Field(default=30.0, gt=0)
    """For a client to send its request's head, then its body, and to take some of its answer."""
    drain_s: float = Field(default=900.0, gt=0)
    """How long a replaced version still serves the turns that began with it; longer than `hop_s`,
    or a hop may lose its version."""


class RecordConfig(_Section):
    """What is written down, and where."""

    enabled: bool = True
    """Whether hops, turns and feedback are recorded."""
    folder: Path | None = None
    """Where the spool goes; None is `spool` in the home folder."""
    queue: int = Field(default=10_000, ge=1)
    """Records that may wait for the writer; further ones are dropped and counted."""
    segment_bytes: int = Field(default=64 << 20, ge=1024)
    """A spool file is closed at this size."""
    segment_s: float = Field(default=300.0, gt=0)
    """A spool file is closed at this age."""
    token_ids: bool = True
    """Ask the engine for token ids; turn it off for engines that refuse unknown fields."""


class OtlpConfig(_Section):
    """The endpoint that takes OpenTelemetry data over HTTP."""

    enabled: bool = False
    """Whether there is one."""
    host: str = "127.0.0.1"
    """Address to listen on; one that is not the loopback needs API keys."""
    port: int = Field(default=4318, ge=0, le=65535)
    """Port; 0 takes a free one."""
    folder: Path | None = None
    """Where requests are kept for ingest; None is `otlp` in the home folder."""
    max_body_bytes: int = Field(default=16 << 20, ge=1024)
    """A larger request is refused with 413, also one that is larger once unpacked."""
    max_waiting: int = Field(default=64, ge=1)
    """Requests worked on at once; further ones are sent away with 429 to come again."""
    segment_bytes: int = Field(default=64 << 20, ge=1024)
    """A file is closed at this size."""
    segment_s: float = Field(default=300.0, gt=0)
    """A file is closed at this age."""


class ServeConfig(_Section):
    """Everything the MoL server may be told."""

    host: str = "127.0.0.1"
    """Address to listen on; one that is not the loopback needs API keys."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port of the public API; 0 takes a free one."""
    admin_port: int = Field(default=8081, ge=0, le=65535)
    """Port of the admin API, on the loopback always."""
    engines: Annotated[tuple[EngineAddress, ...], BeforeValidator(_split)] = (
        "http://127.0.0.1:8000",
    )
    """Addresses of the engine's replicas, as a list or with commas between. Their API key is
    MOL_ENGINE_KEY in the environment."""
    model: str = "mol"
    """Public name of the whole; a request for it gets a full turn."""
    base_name: str = "base"
    """Name under which the engine serves the bare base model."""
    attempts: int = Field(default=2, ge=1, le=5)
    """Tries of an engine call that failed before the client got anything, but for time-outs."""
    poll_s: float = Field(default=0.1, gt=0)
    """How often the slot table is looked at."""
    keep_days: float = Field(default=30.0, gt=0, le=MOST_DAYS)
    """Turns older than this are forgotten, the first ones of a longer conversation too."""
    router: RouterConfig = RouterConfig()
    limits: LimitsConfig = LimitsConfig()
    timeouts: TimeoutConfig = TimeoutConfig()
    record: RecordConfig = RecordConfig()
    otlp: OtlpConfig = OtlpConfig()
