"""The data contract: good rows pass, every kind of bad row fails it, nothing private leaks.

Proved with the real Great Expectations; the bad rows are made by hand, for curation itself
does not let them through.
"""

import json

import pytest
from curation_turns import PROFILE, calls, edited, says, user

from curation.build import select
from curation.config import CurationConfig
from curation.contract import COLUMNS, ContractFailed, check, narrow_frame, validate
from curation.examples import Example
from serving.records import Message

SECRET = "my password is hunter2"


@pytest.fixture(scope="module")
def rows() -> list[Example]:
    turns = [
        edited(f"t{n}", f"answer {n}", request=f"{SECRET} {n}", who=f"u{n % 30}") for n in range(60)
    ]
    found = list(select(turns, "L2", PROFILE, CurationConfig()).examples)
    assert {row.split for row in found} == {"train", "holdout"}
    return found


def changed(row: Example, **fields) -> Example:
    """A row with other content and an id that fits it."""
    draft = row.model_copy(update=fields)
    return draft.model_copy(update={"example_id": draft.computed_id})


def test_good_rows_pass_every_expectation(rows):
    report = check(rows, "L2", 16)
    assert all(line["success"] and line["evaluated"] for line in report)


def test_the_report_carries_no_text_of_the_rows(rows):
    report = json.dumps(check(rows, "L2", 16))
    assert "hunter2" not in report
    assert rows[0].example_id not in report


def test_no_private_column_reaches_the_library(rows):
    frame = narrow_frame(rows)
    assert list(frame.columns) == list(COLUMNS)
    assert "hunter2" not in frame.to_json()
    assert '"u1"' not in frame.to_json()


BAD = {
    "unique": lambda rows: [*rows, rows[0]],
    "in_set(slot)": lambda rows: [*rows, changed(rows[0], slot="L1", messages=(user("n"),))],
    "between(completion_chars)": lambda rows: [
        *rows,
        changed(rows[0], completion=says(""), messages=(user("n"),)),
    ],
    "in_set(view_end)": lambda rows: [
        *rows,
        changed(rows[0], messages=(Message(role="system", content="s"),)),
    ],
    "in_set(json_parses)": lambda rows: [*rows, changed(rows[0], tools="{", hop_id="h")],
    "in_set(id_is_content)": lambda rows: [
        rows[0].model_copy(update={"completion": calls("f")}),
        *rows[1:],
    ],
    "in_set(owner_sides)": lambda rows: [
        *rows,
        changed(
            rows[0],
            messages=(user("n"),),
            split="train" if rows[0].split == "holdout" else "holdout",
        ),
    ],
    "in_set(prompt_sides)": lambda rows: [
        *rows,
        changed(
            rows[0],
            user="zoe",
            conversation_id="z",
            split="train" if rows[0].split == "holdout" else "holdout",
        ),
    ],
    "sum_to_be_between(in_train)": lambda rows: [r for r in rows if r.split == "holdout"],
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_row_fails_the_contract_by_name(rows, what):
    with pytest.raises(ContractFailed) as caught:
        check(BAD[what](rows), "L2", 16)
    text = str(caught.value)
    assert what in text.replace("_values_to_be", "").replace("expect_column_", "")
    assert "\n" not in text
    assert "hunter2" not in text


def test_a_missing_column_fails_closed(rows):
    with pytest.raises(ContractFailed, match=r"slot\) could not be evaluated"):
        validate(narrow_frame(rows).drop(columns="slot"), "L2", 16)


def test_every_column_is_required(rows):
    frame = narrow_frame(rows).drop(columns=list(COLUMNS)).assign(other=1)
    with pytest.raises(ContractFailed) as caught:
        validate(frame, "L2", 16)
    assert all(f"({column}) could not be evaluated" in str(caught.value) for column in COLUMNS)


def test_a_null_id_fails(rows):
    frame = narrow_frame(rows)
    frame.loc[0, "example_id"] = None
    with pytest.raises(ContractFailed, match=r"not_be_null\(example_id\) rejects 1 row"):
        validate(frame, "L2", 16)


def test_no_rows_at_all_fail():
    with pytest.raises(ContractFailed):
        check([], "L2", 1)


def test_an_empty_holdout_is_a_warning_and_is_reported(rows):
    report = check([row for row in rows if row.split == "train"], "L2", 16)
    (line,) = [line for line in report if not line["success"]]
    assert (line["column"], line["severity"]) == ("in_holdout", "warning")
