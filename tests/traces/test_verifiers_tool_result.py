"""Proves what of a tool result is an error and what is content, and that Python and SQL agree.

Nothing is faked: the SQL runs in DuckDB, on the same texts and on many that chance puts together.
"""

import json
import random
from pathlib import Path

import duckdb
import pytest

from traces.verifiers.tool_result import FAILED_SQL, tool_error, tool_failure

SHARED = Path(__file__).parents[3] / "shared" / "data"
TRACE = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    1 / 0\n'
ERRORS = {
    "Error: no such flight": "error",
    "  Error: no such flight\nmore": "error",
    "**Error**: odd": "error",
    "[ERROR]: odd": "error",
    "ERROR: odd": "error",
    "fatal: not a git repository": "error",
    "Error executing tool search: odd": "error",
    "An error occurred while running the tool. Please try again.": "error",
    "<tool_use_error>File does not exist.</tool_use_error>": "error",
    "Tool 'fly' not found": "error",
    "Tool execution failed: odd": "error",
    "Unknown tool: fly": "error",
    "Invalid arguments: room": "error",
    "Failed to connect to the server": "error",
    "bash: foo: command not found": "error",
    "cat: x: No such file or directory\n": "error",
    "ValueError: odd": "error",
    "KeyError('x')": "error",
    "requests.exceptions.ConnectionError: refused": "error",
    "TimeoutError: odd": "timeout",
    "subprocess.TimeoutExpired: Command": "timeout",
    "Command timed out after 30 s": "timeout",
    "The operation timed out.": "timeout",
    "HTTP 404": "http_status",
    "HTTP/1.1 500 Internal Server Error": "http_status",
    "404 Not Found": "http_status",
    "404 Client Error: Not Found for url: x": "http_status",
    "Status code: 503": "http_status",
    "Request failed with status code 429": "http_status",
    "exit code: 1": "exit_code",
    "Exit code 127\nfoo": "exit_code",
    "exitcode: 1 (execution failed)\nCode output: x": "exit_code",
    "<returncode>1</returncode>\n<output>x": "exit_code",
    "output\n[The command completed with exit code 1.]": "exit_code",
    "done\nProcess exited with code 2\n": "exit_code",
    "exit status -9": "exit_code",
    TRACE + "ZeroDivisionError: division by zero": "traceback",
    "some output\n" + TRACE + "ZeroDivisionError: division by zero\n": "traceback",
    '{"error": "boom"}': "error",
    '{"error": {"code": 1}}': "error",
    '{"error": [0]}': "error",
    '{"error": true}': "error",
    ' {"error": "x"}\n': "error",
    '{"isError": true, "content": []}': "error",
    '{"ok": false}': "error",
    '{"success": false}': "error",
    '{"status": "error"}': "error",
    '{"status": "timeout"}': "timeout",
    '{"traceback": "x"}': "traceback",
    '{"exit_code": 2, "stdout": ""}': "exit_code",
    '{"returncode": -9}': "exit_code",
    '{"status": 404}': "http_status",
    '{"statusCode": 599}': "http_status",
    '{"statusCode": 404, "name": "order"}': "http_status",
    '{"status": 404, "title": "Not Found", "detail": "x", "type": "about:blank"}': "http_status",
    '{"error": {"code": 7, "message": "ok"}}': "error",
    '{"error": {"code": null, "message": "odd"}}': "error",
    '{"error": "none of the rooms is free"}': "error",
    '{"error": "no"}': "error",
    "Error: None of the rooms is free": "error",
    "Error: no, that cannot be": "error",
    "Error: 0x80070005": "error",
    "Failed: no such room": "error",
    "FAILED: 3 of 5": "error",
    "ValueError: None": "error",
    "Timeout: 30 s passed without an answer": "timeout",
}
CONTENT = (
    "", "null", "[]", "{}", "ok", "42", '"Error"', "Errors are listed below", "error-free",
    "Error handling in Go is explicit.", "The error was fixed in v2", "0 errors", "No errors found",
    "Status: 200", "HTTP/1.1 200 OK", "exit code: 0", "exit code 0\nfine", "404 pages were read",
    "Returned 404 rows", "500 apples", "The game timed out in 1999 by rain",
    "Timeout settings are in config.py", "def f():\n    raise ValueError('x')\n",
    "class MyError(Exception):\n    pass", "log\nERROR: line 5\nmore text\nend",
    "docs say:\n" + TRACE + "ValueError: x\nThis is how a traceback looks.",
    "exit code 1 means that something went wrong; see below", "tests: 3 failed, 5 passed",
    "Failed logins: 3\nFailed jobs: 2", "ValueErrors are common", "The tool was found",
    "Invalid dates were skipped", "find: 'x': Permission denied\n./a\n./b",
    '{"error": null}', '{"error": ""}', '{"error": 0}', '{"error": 0.0}', '{"error": -0.0}',
    '{"error": false}', '{"error": []}', '{"error": {}}', '{"ok": true}', '{"ok": null}',
    '{"ok": 0}', '{"ok": "false"}', '{"OK": false}', '{"status": "ok"}', '{"status": 200}',
    '{"status": 399}', '{"status": 600}', '{"status": 404.5}', '{"exit_code": 0}',
    '{"exit_code": true}', '{"exit_code": "1"}', '{"type": "object"}', '{"isError": false}',
    '{"error": "x"', '{"error": nan}', '{"error": [1,]}', '{"error": "\\ud800"}',
    "Error: None\nResult: 5", "error: null", "**Error:** none\nOutput: 5", "Error: no\n5",
    "Error: 0", "Failed: 0\nPassed: 12", "Failed: 2, Passed: 10", "Error: null, Result: 5",
    'Error: ""\r\n5', "Timeout: 30\nRetries: 2", "Timeout: None\nHost: a", "[ERROR]: none",
    "Error: N/A\n", '{"error": "None", "result": 5}', '{"error": "null"}', '{"error": "0"}',
    '{"exception": "none"}', '{"error": {"code": 0, "message": "ok"}}', '{"error": {"code": 0.0}}',
    '{"error": {"code": null, "message": "", "details": []}}', '{"traceback": "None"}',
    '{"status": 450, "name": "order"}', '{"status": 404, "url": "x"}',
    '{"result": {"error": "x"}}', '[{"error": "x"}]', '{"error": null, "error": "x"}',
)  # fmt: skip


def in_sql(texts: list[str]) -> list[bool]:
    rows = duckdb.execute(
        f"SELECT {FAILED_SQL} FROM (SELECT unnest($texts) AS content,"
        " unnest(range(len($texts))) AS place) r ORDER BY place",
        {"texts": texts},
    ).fetchall()
    return [row[0] for row in rows]


@pytest.mark.parametrize(("text", "kind"), ERRORS.items())
def test_an_error_is_seen_and_named(text: str, kind: str) -> None:
    failure = tool_failure(text)

    assert failure is not None
    assert failure.kind == kind
    assert tool_error(text) == failure.text
    assert 0 < len(failure.text) <= 200


@pytest.mark.parametrize("text", CONTENT)
def test_content_is_no_error(text: str) -> None:
    assert tool_failure(text) is None
    assert tool_error(text) is None


def test_an_error_is_told_in_its_own_words() -> None:
    assert tool_error('{"error": "boom", "ok": false}') == "boom"
    assert tool_error('{"error": {"code": 1}}') == "{'code': 1}"
    assert tool_error('{"ok": false}') == "ok is false"
    assert tool_error('{"exit_code": 2}') == "exit_code is 2"
    assert tool_error("  Error: gone ") == "Error: gone "
    assert tool_error("x" * 500 + "\nexit code 3\n")[-11:] == "exit code 3"  # type: ignore[index]


def test_python_and_sql_agree_on_what_was_thought_of() -> None:
    texts = [*ERRORS, *CONTENT]

    assert in_sql(texts) == [text in ERRORS for text in texts]


def test_python_and_sql_agree_on_what_was_not() -> None:
    rng = random.Random(5)
    keys = ("error", "err\\u006fr", "status", "ok", "exit_code", "isError", "type", "traceback",
            "message", "name", "st\\u0061tus")  # fmt: skip
    values = ("1", "0", "-0", "0e0", "1e0", "404", "4.04e2", "00", "+1", "NaN", "-Infinity", "nan",
              "null", "true", "false", '"error"', '"\\ud800"', '"\\ud83d\\ude00"', "'x'", "[1,]",
              '{"a": 1,}', '"\t"', '"nan,]"', '"\\u0000"', "1e400", "12345678901234567890",
              "9999999999", "10000000000", '{"error": "\\ud800"}', "[]", '"\u017f"',
              '"None"', '" "', '{"code":0}', '{"code": 0e0, "message": "x"}', '{"code": "0"}',
              '{"code": false}', '{"a": 0, "b": ""}', '{ "a" : -0.0 , "b": [ ] }', '{"a b": 0}',
              '{"a": {}}', '{"a": {"b": 0}}', "{}", '{"": 0}', '{"code": -0}')  # fmt: skip
    atoms = (*ERRORS, *CONTENT, "\n", " ", "\t", "\r\n", "\x0b", "\u00a0", "\u2028", "\x00", "é",
             "\u212a", "Error", "exit code", "1", "404", ":", "{", "}")  # fmt: skip
    texts = ["".join(rng.choices(atoms, k=rng.randint(1, 6))) for _ in range(4000)]
    for _ in range(6000):
        pairs = [f'"{rng.choice(keys)}": {rng.choice(values)}' for _ in range(rng.randint(1, 3))]
        texts.append("{" + ",".join(pairs) + "}")

    found = [tool_failure(text) is not None for text in texts]

    assert in_sql(texts) == found
    assert 1500 < sum(found) < 5000


@pytest.mark.parametrize(
    "text",
    ["Error " * 300_000, "exit code " * 200_000, " " * 1_000_000 + "x", '{"a":' * 100_000,
     "x\nTraceback (most recent call last):\n" * 50_000, "A.b." * 500_000],
    ids=["error", "exit", "space", "nested", "traceback", "names"],
)  # fmt: skip
def test_long_results_are_read_in_one_go(text: str) -> None:
    assert tool_failure(text) is None
    assert in_sql([text]) == [False]


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared")
def test_what_people_and_agents_say_to_each_other_is_no_tool_error() -> None:
    seen = [
        (str(message.get("name")), tool_failure(str(message["content"])))
        for path in sorted((SHARED / "who-and-when" / "algorithm-generated").glob("*.json"))
        for message in json.loads(path.read_text())["history"]
    ]
    terminal = [failure for name, failure in seen if name == "Computer_terminal"]

    assert [failure for name, failure in seen if name != "Computer_terminal" and failure] == []
    assert sum(failure is not None for failure in terminal) == 90
