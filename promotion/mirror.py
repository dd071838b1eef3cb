"""A copy of what the slots serve in an MLflow model registry, with aliases.

In: the registry and the URI of an MLflow registry (a server, or a database such as
`sqlite:///mlflow.db`). Out: a registered model `mol-loop-L2` a slot, with a version for each
adapter that was ever mirrored as champion, previous or canary, and aliases of those names that
follow the registry. The copy goes one way and deletes nothing but an alias that nobody bears
any more. Doing it again changes nothing; whatever fails leaves the registry as it was.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from promotion.registry import Registry
from promotion.state import BASE, RegisteredVersion, SlotState
from serving.addresses import shown_address, without_secrets
from serving.errors import MolError
from serving.records import Record

if TYPE_CHECKING:
    from mlflow import MlflowClient

PREFIX = "mol-loop-"
"""Before a slot's name in the names of MLflow's models."""
ALIASES = ("champion", "previous", "canary")
_DIGEST, _GENERATION = "mol.digest", "mol.generation"
_LIMITS = {
    # A registry that does not answer must not hold up a promotion for minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MirrorUnavailable(MolError, ConnectionError):
    """The MLflow registry cannot be reached, or refuses; the registry here is as it was."""


class Mirrored(Record):
    """What one slot's mirror looks like now."""

    model: str
    aliases: dict[str, int]
    """Alias to MLflow's number of the version."""
    added: int
    """Versions that were not there before."""
    generation: int
    """Of the slot that it shows."""


def mirror(registry: Registry, uri: str) -> list[Mirrored]:
    """Bring the MLflow registry at `uri` up to date with every slot that ever served a version.

    Raises:
        MirrorUnavailable: if it cannot be reached or written, or mlflow is not installed.
    """
    with _known_errors(uri):
        client = _client(uri)
        states = [state for state in registry.slots() if not state.never_served or state.canary]
        return [_mirror_slot(client, registry, state) for state in states]


def _mirror_slot(client: "MlflowClient", registry: Registry, state: SlotState) -> Mirrored:
    """Write one slot; if it moved meanwhile, write it again, so that the last writer is right."""
    added = 0
    while True:
        added += _write_slot(client, registry, state)
        now = registry.slot(state.slot)
        if now.generation == state.generation:
            break
        state = now
    model = client.get_registered_model(_model(state))
    aliases = {alias: int(number) for alias, number in model.aliases.items() if alias in ALIASES}
    return Mirrored(model=model.name, aliases=aliases, added=added, generation=state.generation)


def _write_slot(client: "MlflowClient", registry: Registry, state: SlotState) -> int:
    model = _model(state)
    aliases = _ensure_model(client, model, state)
    added = 0
    for alias in ALIASES:
        digest = getattr(state, alias)
        if digest in (None, BASE):
            if alias in aliases:
                client.delete_registered_model_alias(model, alias)
            continue
        number = _number(client, model, digest)
        if number is None:
            number = _add(client, model, registry.version(digest))
            added += 1
        if str(aliases.get(alias)) != number:
            client.set_registered_model_alias(model, alias, number)
    client.set_registered_model_tag(model, _GENERATION, str(state.generation))
    return added


def _ensure_model(client: "MlflowClient", model: str, state: SlotState) -> dict[str, Any]:
    """Return the aliases of a slot's model, which is made if it is not there."""
    from mlflow.exceptions import MlflowException

    try:
        return dict(client.get_registered_model(model).aliases)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    words = f"Adapters of slot {state.slot}; a mirror, written by mol-loop."
    try:
        client.create_registered_model(model, description=words)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another mirror was faster
            raise
    return {}


def _number(client: "MlflowClient", model: str, digest: str) -> str | None:
    """Return MLflow's number of a version, None if it has none."""
    query = f"name = '{model}' AND tags.`{_DIGEST}` = '{digest}'"
    found = client.search_model_versions(query, max_results=1)
    return str(found[0].version) if found else None


def _add(client: "MlflowClient", model: str, version: RegisteredVersion) -> str:
    tags = {
        _DIGEST: version.digest,
        "mol.name": version.name,
        "mol.base": version.base_digest,
        "mol.manifest": version.manifest_digest,
        "mol.run": version.run_key,
        "mol.signer": version.signer,
    }
    made = client.create_model_version(
        model,
        # Not a path: the files stay here, and a server refuses paths of other machines.
        source=f"mol-loop:///{version.path}",
        tags={name: value for name, value in tags.items() if value is not None},
        await_creation_for=None,  # no file is uploaded that it could wait for
        description=f"{version.name}, made {version.created_at:%Y-%m-%d %H:%M} UTC",
    )
    return str(made.version)


def _model(state: SlotState) -> str:
    return f"{PREFIX}{state.slot}"


def _client(uri: str) -> "MlflowClient":
    for name, value in _LIMITS.items():
        os.environ.setdefault(name, value)
    from mlflow import MlflowClient

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextmanager
def _known_errors(uri: str) -> Iterator[None]:
    label = shown_address(uri)
    try:
        yield
    except ModuleNotFoundError as error:
        raise MirrorUnavailable(
            f"Cannot mirror to {label!r}: {error}. Install the extra 'mlflow' of this package."
        ) from error
    except MolError:
        raise
    # Over HTTP, databases and files the client raises whatever those raise.
    except Exception as error:
        # What it raises repeats the URI.
        said = without_secrets(str(error).replace(uri, label))
        detail = " ".join(said.split())[:300] or type(error).__name__
        raise MirrorUnavailable(
            f"Cannot mirror to {label!r}: {detail}. The registry here is as it was; "
            "'flows adapters mirror' brings the copy up to date when it answers."
        ) from error
