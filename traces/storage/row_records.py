"""Records rebuilt from rows of the lake's tables."""

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from serving.records import Record
from traces.storage.tables import readable

R = TypeVar("R", bound=Record)

# Fields that are JSON text in the record itself, not only in the lake.
_TEXT_FIELDS = frozenset({"tools", "params", "signals", "reference", "config"})


def record_of(kind: type[R], table: str, row: Mapping[str, Any], prefix: str = "") -> R:
    """Rebuild a record from a lake row whose keys may carry a prefix."""
    values: dict[str, Any] = {}
    for name, nested, required in _fields(kind, table):
        value = row[prefix + name]
        if value is None and not required:
            continue
        values[name] = json.loads(value) if nested and value is not None else value
    return kind.model_validate(values)


@cache
def _fields(kind: type[Record], table: str) -> tuple[tuple[str, bool, bool], ...]:
    """Return the columns that are fields of the record, whether each is nested, and required."""
    fields = kind.model_fields
    return tuple(
        (c.name, c.kind == "json" and c.name not in _TEXT_FIELDS, fields[c.name].is_required())
        for c in readable(table)
        if c.name in fields
    )
