"""Verify a value by a JSON Schema that came out of a log.

Nothing that it refers to elsewhere is fetched, and a check gets a second in all, a fifth of it for
each pattern. A schema that is none, or takes longer, says nothing: no verdict, with the reason. A
schema is read once for all values that it is asked about. One that took too long for several of
them gets a tenth of the time from then on, so that a log full of them ends; a value that is
checked in no time gets its verdict whatever came before it.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any

import regex  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, UnknownType, ValidationError, best_match
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from traces.verifiers.check import Check
from traces.verifiers.plain_schema import quick_test

_LIMIT_S = 1.0
_PATTERN_LIMIT_S = 0.2
_SHORT_LIMIT_S = 0.1
"""What a schema gets that took too long again and again."""
_SCHEMAS = 1024
"""Schemas that are kept read."""
_TOO_LATE = 3
"""Checks that took too long, after which a schema gets less time."""
_LEAVES = frozenset(
    ("type", "const", "enum", "format", "minimum", "maximum", "exclusiveMinimum",
     "exclusiveMaximum", "multipleOf", "divisibleBy", "minLength", "maxLength", "minItems",
     "maxItems", "minProperties", "maxProperties", "required")
)  # fmt: skip
"""Keywords that take no longer than to look at their value."""
_UNTIL: ContextVar[float] = ContextVar("until", default=0.0)
"""When the check that runs has had its time."""

_VALID = Check(True, "valid by the schema")

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError]]


@dataclass(slots=True)
class _Read:
    """A schema that was read."""

    validator: Any
    accepts: Callable[[Any], bool] | None
    """A quick test, where there is one."""
    late: int = 0
    """Checks by it that took too long."""


def check_by_schema(schema: Any, value: Any) -> Check:
    """Pass if a JSON value is valid by a JSON Schema; no verdict if that cannot be said.

    Drafts 3 to 2020-12 by `$schema`, without it 2020-12. Formats are not checked.
    """
    try:
        read = _read(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        return Check(None, "the schema is no JSON Schema: not JSON")
    if isinstance(read, str):
        return Check(None, read)
    if read.accepts is not None and read.accepts(value):
        return _VALID
    _UNTIL.set(time.monotonic() + (_LIMIT_S if read.late < _TOO_LATE else _SHORT_LIMIT_S))
    try:
        error = best_match(read.validator.iter_errors(value))
    except Unresolvable as missing:
        return Check(None, f"the schema refers to {str(missing.ref)[:60]!r}, which is not there")
    except UnknownType as unknown:
        return Check(None, f"the schema has an unknown type {str(unknown.type)[:40]!r}")
    except regex.error as error:
        return Check(None, f"the schema has a pattern that is none: {error}"[:160])
    except TimeoutError:
        read.late += 1
        return Check(None, "the schema takes too long to check")
    except RecursionError:
        return Check(None, "too deep to check by the schema")
    except Exception as error:
        # A multiple of infinity; an address that `urllib` refuses; a reference to a part that is no
        # schema, which no rule of schemas forbids.
        why = " ".join(f"{type(error).__name__}: {error}".split())
        return Check(None, f"the schema cannot be checked: {why}"[:160])
    if error is None:
        return _VALID
    return Check(False, f"breaks the schema at {error.json_path[:80]} ({error.validator})")


@lru_cache(maxsize=_SCHEMAS)
def _read(text: str) -> _Read | str:
    """Return a schema given as JSON text, read, or why there is none."""
    schema = json.loads(text)
    if not isinstance(schema, Mapping | bool):
        return f"the schema is no JSON Schema: {text[:40]}"
    if isinstance(schema, dict) and not isinstance(schema.get("$schema", ""), str):
        return "the schema is no JSON Schema: its '$schema' is no address"
    if '"unevaluatedProperties"' in text and '"patternProperties"' in text:
        return "the schema combines patterns in a way that cannot be checked in bounded time"
    kind: Any = validator_for(schema, default=Draft202012Validator)
    try:
        # Without formats: the patterns of JSON Schema are not those of Python.
        kind.check_schema(schema, format_checker=None)
    except SchemaError as error:
        return f"the schema is no JSON Schema at {error.json_path}"[:160]
    except RecursionError:
        return "the schema is no JSON Schema: too deep"
    validator = _bounded(kind)(schema, registry=Registry())
    return _Read(validator, quick_test(kind, schema))


@lru_cache
def _bounded(kind: Any) -> Any:
    """Return a validator class that fetches nothing and takes no longer than it may."""
    keywords: dict[str, Any] = {
        name: partial(_within_time, keyword)
        for name, keyword in kind.VALIDATORS.items()
        if name not in _LEAVES
    }
    keywords |= {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
    }
    keywords |= {
        name: _multiple_of for name in ("multipleOf", "divisibleBy") if name in kind.VALIDATORS
    }
    return extend(kind, keywords)  # type: ignore[no-untyped-call]


def _within_time(
    keyword: Keyword, validator: Any, asked: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Look at the clock first: by references and nesting a small schema asks for endless work."""
    _left_s()
    yield from keyword(validator, asked, instance, schema) or ()


def _multiple_of(
    validator: Any, step: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Divide by decimal digits, as JSON has them: to a computer's fractions 19.99 is no cents."""
    if validator.is_type(instance, "number") and Fraction(str(instance)) % Fraction(str(step)):
        yield ValidationError(f"is no multiple of {step!r:.40}")


def _unique_items(
    validator: Any, unique: bool, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    """Compare by hash: `jsonschema` compares each item of unlike types with each."""
    several = unique and isinstance(instance, list)
    if several and len({_comparable(item) for item in instance}) < len(instance):
        yield ValidationError("has an item twice")


def _comparable(value: Any) -> Any:
    """Return what is equal for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        return "{", frozenset((key, _comparable(part)) for key, part in value.items())
    if isinstance(value, list):
        return "[", tuple(map(_comparable, value))
    return ("?", value) if isinstance(value, bool) else value


def _pattern(
    validator: Any, pattern: str, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"does not match {pattern!r:.80}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, part in patterns.items():
            for key, value in instance.items():
                if _found(pattern, key):
                    yield from validator.descend(value, part, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, part: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for key, value in instance.items():
            if key not in known and not any(_found(pattern, key) for pattern in patterns):
                yield from validator.descend(value, part, path=key)


def _found(pattern: str, text: str) -> bool:
    limit_s = min(_PATTERN_LIMIT_S, _left_s())
    return regex.search(pattern, text, timeout=limit_s, concurrent=True) is not None


def _left_s() -> float:
    """Return the seconds that the check that runs has left.

    Raises:
        TimeoutError: if it has none.
    """
    left_s = _UNTIL.get() - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
