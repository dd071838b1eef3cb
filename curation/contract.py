"""The data contract of a dataset, checked with Great Expectations; it fails closed.

In: rows as they would be written. Out: a report without sample values, for the manifest, or
`ContractFailed`. Only ids, enumerations, lengths and flags reach Great Expectations, because
its results carry samples of what they reject. Importing it takes seconds, so that happens
inside the call.
"""

import json
import logging
import os
import warnings
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from pydantic import ValidationError

from curation.examples import (
    VIEW_ENDS,
    Duty,
    Example,
    Source,
    Split,
    seen_key,
    text_chars,
    view_end,
)
from serving.errors import MolError

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "example_id",
    "slot",
    "duty",
    "source",
    "split",
    "weight",
    "completion_chars",
    "view_end",
    "id_is_content",
    "json_parses",
    "prompt_sides",
    "owner_sides",
    "in_train",
    "in_holdout",
)


class ContractFailed(MolError, ValueError):
    """Curated rows break the data contract; no dataset was written."""


def check(rows: Sequence[Example], slot: str, min_rows: int) -> list[dict[str, Any]]:
    """Hold rows to the contract and return its report.

    Raises:
        ContractFailed: if a critical expectation fails or cannot be evaluated.
    """
    return validate(narrow_frame(rows), slot, min_rows)


def narrow_frame(rows: Sequence[Example]) -> "pd.DataFrame":
    """Return the frame that is validated: no text of a user or a model is in it."""
    import pandas as pd

    prompt_sides: dict[str, set[str]] = defaultdict(set)
    owner_sides: dict[str, set[str]] = defaultdict(set)
    keys = [seen_key(row.messages, row.tools) for row in rows]
    for key, row in zip(keys, rows, strict=True):
        prompt_sides[key].add(row.split)
        for owner in _owners(row):
            owner_sides[owner].add(row.split)
    records = [
        {
            "example_id": row.example_id,
            "slot": row.slot,
            "duty": row.duty,
            "source": row.source,
            "split": row.split,
            "weight": row.weight,
            "completion_chars": text_chars(row.completion),
            "view_end": view_end(row.messages),
            "id_is_content": row.example_id == row.computed_id,
            "json_parses": _json_parses(row),
            "prompt_sides": len(prompt_sides[key]),
            "owner_sides": max(len(owner_sides[owner]) for owner in _owners(row)),
            "in_train": int(row.split == "train"),
            "in_holdout": int(row.split == "holdout"),
        }
        for key, row in zip(keys, rows, strict=True)
    ]
    return pd.DataFrame.from_records(records, columns=list(COLUMNS))


def _owners(row: Example) -> list[str]:
    users = [] if row.user is None else [f"user {row.user}"]
    return [f"conversation {row.conversation_id}", *users]


def _json_parses(row: Example) -> bool:
    """Say whether the row survives its own JSON, and the tools and arguments in it parse."""
    try:
        same = Example.model_validate_json(row.model_dump_json()) == row
        tools = json.loads(row.tools)
        arguments = [json.loads(call.arguments) for call in row.completion.tool_calls]
    except (ValidationError, ValueError, RecursionError):
        return False
    return same and isinstance(tools, list) and all(isinstance(a, dict) for a in arguments)


def validate(frame: "pd.DataFrame", slot: str, min_rows: int) -> list[dict[str, Any]]:
    """Run the contract over a narrow frame and return its report.

    Raises:
        ContractFailed: if a critical expectation fails or cannot be evaluated.
    """
    with warnings.catch_warnings():
        # Deprecations inside the library are not ours to act on.
        warnings.simplefilter("ignore")
        results = _run(frame, slot, min_rows)
    report = sorted(map(_line, results), key=lambda line: (line["expectation"], line["column"]))
    failed = [line for line in report if not line["success"] and line["severity"] == "critical"]
    if failed or not report:
        what = "; ".join(_words(line) for line in failed) or "no expectation was evaluated"
        raise ContractFailed(
            f"The curated rows of slot {slot!r} break the data contract: {what}. Nothing was "
            "written. Look at the traces they come from with 'flows traces list'."
        )
    return report


def _run(frame: "pd.DataFrame", slot: str, min_rows: int) -> list[Any]:
    os.environ["GX_ANALYTICS_ENABLED"] = "False"  # read at import
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig

    # This module of theirs sets its own level.
    logging.getLogger(ProgressBarsConfig.__module__).setLevel(logging.WARNING)

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("curation").add_dataframe_asset("examples")
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    suite = gx.ExpectationSuite(name="examples", expectations=_expectations(slot, min_rows))
    return list(batch.validate(suite, result_format="BASIC").results)


def _expectations(slot: str, min_rows: int) -> list[Any]:
    import great_expectations.expectations as gxe

    legal = {
        "slot": [slot],
        "duty": list(get_args(Duty)),
        "source": list(get_args(Source)),
        "split": list(get_args(Split)),
        "view_end": list(VIEW_ENDS),
        "id_is_content": [True],
        "json_parses": [True],
        "prompt_sides": [1],
        "owner_sides": [1],
    }
    return [
        *(gxe.ExpectColumnValuesToNotBeNull(column=column) for column in COLUMNS),
        gxe.ExpectColumnValuesToBeUnique(column="example_id"),
        gxe.ExpectColumnValuesToMatchRegex(column="example_id", regex=r"^sha256:[0-9a-f]{64}$"),
        *(gxe.ExpectColumnValuesToBeInSet(column=c, value_set=v) for c, v in legal.items()),
        gxe.ExpectColumnValuesToBeBetween(column="completion_chars", min_value=1),
        gxe.ExpectColumnValuesToBeBetween(
            column="weight", min_value=0, strict_min=True, max_value=1
        ),
        gxe.ExpectColumnSumToBeBetween(column="in_train", min_value=min_rows),
        gxe.ExpectColumnSumToBeBetween(column="in_holdout", min_value=1, severity="warning"),
    ]


def _line(result: Any) -> dict[str, Any]:
    """Return what the report keeps of one result: counts and no values."""
    config, found = result.expectation_config, result.result
    observed = found.get("observed_value")
    return {
        "expectation": config.type,
        "column": config.kwargs["column"],
        "severity": str(getattr(config.severity, "value", config.severity)),
        # A missing column gives an empty result; that must never read as a pass.
        "success": bool(result.success) and bool(found),
        "evaluated": bool(found),
        "rejected_rows": int(found.get("unexpected_count", 0)),
        "observed": None if observed is None else float(observed),
    }


def _words(line: dict[str, Any]) -> str:
    name = f"{line['expectation']}({line['column']})"
    if not line["evaluated"]:
        return f"{name} could not be evaluated, the column is missing or of another type"
    if line["observed"] is not None:
        return f"{name} observed {line['observed']:g}"
    return f"{name} rejects {line['rejected_rows']} rows"
