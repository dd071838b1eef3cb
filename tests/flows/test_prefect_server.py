"""Runs start and stop a real Prefect server of their own. Nothing is faked."""

import pytest

from flows import manual
from flows.config import Settings
from traces.analytics.views import query

pytestmark = pytest.mark.timeout(600)


def test_two_runs_of_one_process_have_a_server_each(spool, tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    for name in ("first", "second"):
        settings = Settings(home=tmp_path / name, sources=(spool,))
        manual.run(settings, "ingest")
        assert query(settings.home, "SELECT count(*) FROM turns")[1][0][0] > 100
