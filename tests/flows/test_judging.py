"""Proves what a judge does to `flows run attribute`: flags, a line, a server that is not there.

Real lake; the judge's server is a closed port, or answers like one that knows nothing.
"""

from pathlib import Path

import pytest
from engine_server import serve_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from trace_records import traffic, write_spool
from typer.testing import CliRunner

from flows import story
from flows.cli import app
from flows.config import SettingsInvalid, load_settings
from flows.judging import JUDGE_KEY, JudgeStopped, attribute_and_judge, refuse_stopped
from serving.child import HOST, free_port
from traces.ingest import ingest


async def _always_a(request: Request) -> Response:
    body = await request.json()
    choice = {"index": 0, "message": {"role": "assistant", "content": "A"}}
    return JSONResponse({"id": "r", "model": body["model"], "choices": [choice]})


async def _models(request: Request) -> Response:
    return JSONResponse({"data": [{"id": "judge-1"}]})


ROUTES = [
    Route("/v1/chat/completions", _always_a, methods=["POST"]),
    Route("/v1/models", _models),
]


def test_a_judge_is_asked_measured_and_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", traffic(9)))
    with serve_app(Starlette(routes=ROUTES)) as url:
        settings = load_settings(None, ["--attribution.judge", url], {"home": tmp_path / ".mol"})
        report = attribute_and_judge(settings)
    assert report.judge is not None
    assert (report.judge.judge.split("#")[0], report.judge.calls) == ("judge-1", 18)
    assert report.outcomes == {"failure": 3, "success": 6}

    story.tell_attribute(report)
    said = capsys.readouterr()
    assert "is refused: it gave a verdict on 0 verified turns" in said.out + said.err


def test_a_judge_that_is_not_there_stops_nothing_but_is_told(tmp_path: Path) -> None:
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", traffic(3)))
    url = f"http://{HOST}:{free_port()}"
    settings = load_settings(None, ["--attribution.judge", url], {"home": tmp_path / ".mol"})

    report = attribute_and_judge(settings)

    assert report.turns == 3
    with pytest.raises(JudgeStopped, match=r"'--judge'.*What the judge said before is kept"):
        refuse_stopped(report.judge)


def test_a_key_from_the_environment_is_sent_and_v1_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ingest(tmp_path / ".mol", write_spool(tmp_path / "s.jsonl", traffic(3)))
    heard = set()

    async def guarded(request: Request) -> Response:
        heard.add((request.url.path, request.headers.get("authorization")))
        return await (_models(request) if request.method == "GET" else _always_a(request))

    monkeypatch.setenv(JUDGE_KEY, "k-secret\n")
    with serve_app(
        Starlette(routes=[Route("/{path:path}", guarded, methods=["GET", "POST"])])
    ) as url:
        flags = ["--attribution.judge", f"{url}/v1/"]
        report = attribute_and_judge(load_settings(None, flags, {"home": tmp_path / ".mol"}))

    assert report.judge is not None
    assert (report.judge.calls, report.judge.stopped) == (6, None)
    assert heard == {
        ("/v1/models", "Bearer k-secret"), ("/v1/chat/completions", "Bearer k-secret")
    }  # fmt: skip
    assert "k-secret" not in str(report) + "".join(capfd.readouterr())


@pytest.mark.parametrize(
    "url", ["http://bob:SECRET@127.0.0.1:9/v1", "bob:SECRET@127.0.0.1:9", "http://h/?key=SECRET"]
)
def test_an_address_with_a_secret_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(SettingsInvalid, match="MOL_JUDGE_KEY") as refusal:
        load_settings(None, ["--attribution.judge", url], {})

    assert "SECRET" not in str(refusal.value)


def test_a_judge_is_for_attribution() -> None:
    result = CliRunner().invoke(app, ["run", "ingest", "x", "--judge", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "flows run attribute" in result.output
