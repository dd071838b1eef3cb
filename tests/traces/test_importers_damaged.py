"""Proves that no item is lost and none stops a file: recordings with fields dropped or replaced.

Every damaged item must give rows: records, parts counted as skipped, or quarantine with a reason.
The damage is drawn from a fixed seed.
"""

import json
from typing import Any

import pytest
from import_rows import DATA, damaged, lines, rows_as
from logged_calls import ANSWERED, CALL, SIGNAL, camel, chat, generation, logged, score

from traces.sources.detect import FORMATS
from traces.storage.tables import TABLES, arrow_table

TRACE = {"id": "t1", "timestamp": "2025-11-29T16:00:00Z", "projectId": "p", "name": "chat",
         "observations": [camel(generation())], "scores": [score()]}  # fmt: skip
STREAM = [json.loads(line) for line in (DATA / "openai_stream.jsonl").read_text().splitlines()]
ITEMS: list[tuple[str, Any]] = [
    *(("litellm", item) for item in lines("litellm.jsonl")[:7]),
    *(("langsmith", item) for item in lines("langsmith.jsonl")),
    *(("tensorzero", item) for item in (*lines("tensorzero.jsonl"), chat())),
    ("tensorzero", {"id": SIGNAL, "target_id": CALL, "metric_name": "good", "value": True}),
    ("tensorzero", {"id": SIGNAL, "inference_id": CALL, "value": '[{"type":"text","text":"a"}]'}),
    *(("langfuse", item) for item in (generation(), camel(generation()), score(), TRACE)),
    ("langfuse", {"data": [generation(), score()], "meta": {}}),
    *(("openai", item) for item in (logged(), ANSWERED, STREAM)),
]


def test_an_item_is_claimed_by_its_own_importer_alone() -> None:
    for format, item in ITEMS:
        assert [i.NAME for i in FORMATS if i.recognises(item)] == [format]


@pytest.mark.parametrize("seed", range(len(ITEMS)))
def test_a_damaged_item_gives_rows_and_never_an_error(seed: int) -> None:
    format, item = ITEMS[seed]
    before = json.dumps(item)

    for value in damaged(item, seed, 120):
        rows = rows_as(format, value)
        assert rows, value
        for row in rows:
            assert row.table in (*TABLES, "skipped")
            assert row.table != "quarantine" or row.values["reason"]
        for row in rows:
            if row.table in ("hops", "feedback"):
                assert arrow_table(row.table, [row.values]).num_rows == 1

    assert json.dumps(item) == before
