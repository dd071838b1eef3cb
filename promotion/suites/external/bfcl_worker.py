r"""Runs in `.venv-bfcl`, not here: hands out BFCL's items and its own verdicts.

JSON lines on standard input, one reply line for each on standard output after `{"ready": true}`:

    {"do": "items", "categories": ["multiple"]}  -> {"version": "...", "items": [...]}
    {"do": "grade", "id": "multiple_3", "result": [{"f": "{\"x\": 1}"}]}  -> {"valid": false, ...}

`result` is what bfcl-eval keeps of an answer: calls as name and arguments text, or the text of
an answer without calls. It goes through the package's own decoder and its own checks of one
entry (`eval_runner`), as its leaderboard does. This file may import nothing of the project.
"""

# Packages are imported behind the first lines that run.
# ruff: noqa: E402

import contextlib
import importlib.metadata
import json
import os
import queue
import shutil
import sys
import threading
from typing import Any

# What packages, their C code and their subprocesses print is no reply: before they are imported,
# standard output becomes standard error, and only `out` is left of it.
out = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)
sys.stdout = sys.stderr

from bfcl_eval import utils
from bfcl_eval.constants.enums import Language, ReturnFormat
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig
from bfcl_eval.constants.type_mappings import GORILLA_TO_OPENAPI
from bfcl_eval.eval_checker import eval_runner
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from bfcl_eval.model_handler.utils import convert_to_tool

MODEL = "served-FC"
"""Name under which the package knows the engine: any server of OpenAI's tool calls, which allow
no dot in a function's name."""
GRACE_S = 60
"""For the last reply after standard input has ended."""

entries: dict[str, dict[str, Any]] = {}
answers: dict[str, Any] = {}
loaded: set[str] = set()


def main() -> None:
    """Answer until standard input ends, or nobody is there who reads the replies."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(lines,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):
        answer(lines)
    # Not where all else went wrong: what is in it then tells whoever asked why.
    remove_folder()


def answer(lines: "queue.SimpleQueue[str]") -> None:
    """Reply to each line until an empty one."""
    MODEL_CONFIG_MAPPING[MODEL] = ModelConfig(
        MODEL, MODEL, "", "", "", OpenAICompletionsHandler, is_fc_model=True, underscore_to_dot=True
    )
    handler = eval_runner.get_handler(MODEL)
    say({"ready": True})
    while line := lines.get():
        request = json.loads(line)
        try:
            do = request["do"]
            reply = items(handler, request) if do == "items" else grade(handler, request)
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {error}"}
        say(reply)


def listen(lines: "queue.SimpleQueue[str]") -> None:
    """Hand over what is asked; end a main thread that hangs after whoever asked is gone."""
    for line in sys.stdin:
        lines.put(line)
    lines.put("")
    threading.main_thread().join(GRACE_S)
    if threading.main_thread().is_alive():
        remove_folder()
        os._exit(1)


def remove_folder() -> None:
    """Remove the folder that was made for this process; whoever made it may not be there to."""
    if "MOL_FOLDER" in os.environ:
        shutil.rmtree(os.environ["MOL_FOLDER"], ignore_errors=True)


def say(message: dict[str, Any]) -> None:
    """Write one line."""
    out.write(json.dumps(message, ensure_ascii=False) + "\n")
    out.flush()


def items(handler: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return every item of some categories, in the package's order."""
    found = []
    for category in request["categories"]:
        load(category)
        for entry in utils.load_dataset_entry(category, include_prereq=False):
            tools = convert_to_tool(entry["function"], GORILLA_TO_OPENAPI, handler.model_style)
            found.append(
                {
                    "id": entry["id"],
                    "category": category,
                    "messages": entry["question"][0],
                    "tools": tools,
                    "answer": answers.get(entry["id"]),
                }
            )
    return {"version": importlib.metadata.version("bfcl-eval"), "items": found}


def load(category: str) -> None:
    """Keep a category's entries and right answers as the package's grading reads them."""
    if category in loaded:
        return
    prompts = utils.load_dataset_entry(
        category, include_prereq=False, include_language_specific_hint=False
    )
    entries.update((entry["id"], entry) for entry in prompts)
    if not utils.is_relevance_or_irrelevance(category):
        truths = utils.load_ground_truth_entry(category)
        pairs = zip(prompts, truths, strict=True)
        answers.update((entry["id"], truth["ground_truth"]) for entry, truth in pairs)
    loaded.add(category)


def grade(handler: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Return the package's verdict on one answer."""
    name, result = request["id"], request["result"]
    category = utils.extract_test_category_from_id(name)
    load(category)
    entry = entries[name]
    if utils.is_relevance_or_irrelevance(category):
        said = eval_runner._evaluate_single_relevance_entry(
            handler, name, result, entry, MODEL, category
        )
    else:
        said = eval_runner._evaluate_single_ast_entry(
            handler,
            name,
            result,
            answers[name],
            entry,
            MODEL,
            category,
            language=Language.PYTHON,
            return_format=ReturnFormat.PYTHON,
            has_tool_call_tag=False,
        )
    return {
        "valid": bool(said["valid"]),
        "error_type": said.get("error_type", ""),
        "error": str((said.get("error") or [""])[0]),
    }


if __name__ == "__main__":
    main()
