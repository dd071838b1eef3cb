"""All settings of the loop, composed from each package's own.

Default < TOML file < flag; the environment is for secrets and addresses only. Flags are
dotted and kebab-cased, as in `--training.epochs 3` or `--gate.min-items 40`. The resolved
settings are written beside every cycle's record.
"""

import reprlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from curation.config import CurationConfig
from promotion.canary.config import CanaryConfig
from promotion.config import GateConfig
from promotion.suites.config import SuitesConfig
from serving.addresses import ENGINE_KEY, refuse_secrets, shown_address
from serving.config import MOST_DAYS, ServeConfig
from serving.errors import MolError
from serving.records import content_id
from serving.slots import DEFAULT_PROFILE
from traces.config import AttributionConfig, LakeConfig
from traces.sources.locations import is_url
from traces.storage.lake_address import address_of, settle_address
from training.config import MOST_SEEDS, HeadConfig, TrainConfig

_MOST = 10**12
"""No setting counts or measures more; what does is a slip, and overflows somewhere."""


class SettingsInvalid(MolError, ValueError):
    """A configuration file or flag is wrong."""


class SlotPolicy(BaseModel):
    """When a slot is worth retraining."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_blamed: int = Field(default=12, ge=1)
    """Turns that must be blamed on a slot before it is considered."""
    stop_after_rounds: int = Field(default=5, ge=0)
    """Rounds of a slot in a row that bring nothing, after which the loop leaves the slot alone
    until there is twice the evidence, or a person says to go on; 0 never stops."""


class RegistryConfig(BaseModel):
    """Where the registry is, and who signs for it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str | None = None
    """SQLAlchemy URL of the registry; None for a SQLite file in the home."""
    key: Path | None = None
    """PEM file of the private key that signs adapters; None for one made in `<home>/keys`."""
    mirror: str | None = None
    """URI of an MLflow registry that follows each promotion; None for none."""

    @field_validator("url", "mirror")
    @classmethod
    def _without_password(cls, address: str | None) -> str | None:
        parts = urlsplit(address or "")
        if parts.password is not None or "password" in parse_qs(parts.query):
            raise ValueError(
                "it holds a password, which would be written to disk; take it out, and give it in "
                "the environment: PGPASSWORD, or MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD"
            )
        return address


class ScheduleConfig(BaseModel):
    """What `flows schedule` runs when; the rules of cron are those of the time zone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ingest_every_s: int = Field(default=300, ge=0, le=86_400 * MOST_DAYS)
    """Seconds between ingests, each with attribution after it; 0 runs none."""
    upkeep_cron: str = "30 3 * * *"
    """When upkeep runs, as in cron; an empty text runs none."""
    canary_every_s: int = Field(default=300, ge=0, le=86_400 * MOST_DAYS)
    """Seconds between looks at canaries and new champions, which end those that do harm; 0 runs
    none."""
    cycle_cron: str = ""
    """When the whole cycle runs, as in cron; an empty text runs none."""
    timezone: str = "UTC"
    """IANA name of the time zone, such as Europe/Berlin."""


def _path_unless_url(value: Any) -> Any:
    return Path(value) if isinstance(value, str) and not is_url(value) else value


Source = Annotated[Path | str, BeforeValidator(_path_unless_url)]
"""A path, or a URL as text: `Path` would take one of its two slashes."""


class Settings(BaseModel):
    """Everything a run may be told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Path(".mol")
    """Folder of the loop's state: lake, datasets, adapters, registry."""
    base: Path = Path(".mol/base/SmolLM2-135M-Instruct")
    """Hugging Face folder of the frozen base model."""
    profile: Path = DEFAULT_PROFILE
    """TOML file with slots and prompts of the MoL server."""
    sources: tuple[Source, ...] = ()
    """Trace files, folders or URLs to ingest; none are the spool that `flows serve` writes."""
    format: str | None = None
    """Format of the sources, as 'flows run ingest' says it; None detects it from the content."""
    first_adapters: Path | None = None
    """Folder with a PEFT folder for each slot, the champions of a new registry."""
    engine: str = "embedded"
    """`embedded`, or the address of an OpenAI-compatible server that can load adapters; of
    several replicas all of them, with commas between. Its API key is MOL_ENGINE_KEY in the
    environment."""
    slot: str | None = None
    """Slot to work on; None chooses the one that needs it most."""
    seed: int = Field(default=0, ge=0, lt=MOST_SEEDS)
    """Seed of training and of the choice of evaluation items."""
    policy: SlotPolicy = SlotPolicy()
    curation: CurationConfig = CurationConfig()
    training: TrainConfig = TrainConfig()
    head: HeadConfig = HeadConfig()
    gate: GateConfig = GateConfig()
    canary: CanaryConfig = CanaryConfig()
    suites: SuitesConfig = SuitesConfig()
    serve: ServeConfig = ServeConfig()
    lake: LakeConfig = LakeConfig()
    attribution: AttributionConfig = AttributionConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    registry: RegistryConfig = RegistryConfig()

    @field_validator("engine")
    @classmethod
    def _an_address(cls, engine: str) -> str:
        if not all(part.strip() for part in engine.split(",")):
            raise ValueError("must be 'embedded' or addresses of a server with commas between")
        return refuse_secrets(engine, ENGINE_KEY)

    @property
    def replicas(self) -> tuple[str, ...]:
        """`engine` as addresses."""
        return tuple(part.strip() for part in self.engine.split(","))

    @property
    def train_config(self) -> TrainConfig:
        """The training settings with the run's seed."""
        return self.training.model_copy(update={"seed": self.seed})

    @property
    def learning_digest(self) -> str:
        """Content id of all that decides what a cycle learns and how it is judged."""
        apart = {"home", "base", "sources", "format", "registry"}
        # What attribution finds is in the lake, and so in the mark of what learning reads.
        apart |= {"head", "serve", "lake", "schedule", "attribution", "canary"}
        raw = self.model_dump(mode="json", exclude=apart)
        return content_id(raw)


def load_settings(
    file: Path | None,
    flags: Sequence[str] = (),
    overrides: dict[str, Any] | None = None,
    *,
    settle: bool = True,
) -> Settings:
    """Compose settings from a TOML file, dotted flags and named options, in that order.

    Paths in the file are relative to the current folder. Settings with an address for the
    lake make it the home's, unless `settle` is false.

    Raises:
        SettingsInvalid: naming the field, the value and what is allowed.
        LakeAddressRefused: if the home's lake is somewhere else.
    """
    raw: dict[str, Any] = _read(file) if file else {}
    for key, value in _parse_flags(flags):
        _place(raw, key.split("."), value)
    raw |= {key: value for key, value in (overrides or {}).items() if value is not None}
    settings = _validate(raw)
    (settle_address if settle else address_of)(settings.home, settings.lake)
    return settings


def _validate(raw: dict[str, Any]) -> Settings:
    try:
        settings = Settings.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise SettingsInvalid(
            f"Setting {field!r}: {first['msg']}, got {shown_address(repr(first['input']))}. "
            "Run 'flows config' for all settings and their meaning."
        ) from error
    for name, value in _numbers(settings.model_dump()):
        if not abs(value) <= _MOST:
            raise SettingsInvalid(
                f"Setting {name!r}: {reprlib.repr(value)} is no number to reckon with; at most "
                f"{_MOST:,} is allowed. Run 'flows config' for all settings and their meaning."
            )
    return settings


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number in the settings with its name."""
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        inner = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, one in inner:
            yield from _numbers(one, f"{name}.{key}".removeprefix("."))


def describe_settings(model: type[BaseModel] = Settings, prefix: str = "") -> list[dict[str, str]]:
    """Return every setting as a row: flag, default, and what it means."""
    from pydantic.fields import FieldInfo

    rows = []
    docs = _field_docs(model)
    fields: dict[str, FieldInfo] = model.model_fields
    for name, field in fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows += describe_settings(kind, f"{prefix}{name.replace('_', '-')}.")
            continue
        default = field.get_default(call_default_factory=True)
        rows.append(
            {
                "flag": f"--{prefix}{name.replace('_', '-')}",
                "default": str(default),
                "meaning": docs.get(name, ""),
            }
        )
    return rows


def _field_docs(model: type[BaseModel]) -> dict[str, str]:
    """Read the strings under a model's fields, as pydantic does with `use_attribute_docstrings`."""
    import ast
    import inspect
    import textwrap

    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
        ):
            docs[field.target.id] = " ".join(str(text.value.value).split())
    return docs


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsInvalid(
            f"Cannot read the configuration {str(file)!r}: {error}. "
            "Name a TOML file, for example infra/configs/bundled.toml."
        ) from error


def _parse_flags(flags: Sequence[str]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    words = list(flags)
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or "." not in name:
            raise SettingsInvalid(
                f"Unknown argument {word!r}. Settings are dotted flags such as "
                "'--training.epochs 3'; run 'flows config' for all of them."
            )
        if not equals:
            if not words:
                raise SettingsInvalid(f"The flag {word!r} needs a value after it.")
            value = words.pop(0)
        pairs.append((name.replace("-", "_"), value))
    return pairs


def _place(raw: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parents, last = path
    for parent in parents:
        raw = raw.setdefault(parent, {})
        if not isinstance(raw, dict):
            raise SettingsInvalid(f"Setting {'.'.join(path)!r} is inside a plain value.")
    raw[last] = value
