"""reasoning-gym (L0): short reasoning tasks, made from a seed and graded by their own scorers.

From the package `reasoning-gym` (Open-Thought, Apache-2.0). A scorer gives a grade in [0, 1]: a
right answer within more words than needed gets part of it. Like the package's own evaluation, an
answer within `<answer>` tags is read without what stands around them.

One kind of task is one cluster: an adapter that has learned it answers all of it better.
"""

import functools
import importlib.metadata
import importlib.util
from typing import Any

from promotion.suites.external.missing import PackageMissing
from promotion.suites.external.request import asked, outside_item
from promotion.suites.suite import Item, Suite
from serving.records import Message
from serving.slots import Profile
from traces.verifiers.check import Check

SEED = 20260101
ITEMS = 20
"""Of each task."""
MAX_ANSWER_TOKENS = 96
TASKS = (
    "aiw", "arc_1d", "base_conversion", "basic_arithmetic", "binary_alternation",
    "caesar_cipher", "calendar_arithmetic", "chain_sum", "coin_flip", "color_cube_rotation",
    "count_bits", "count_primes", "course_schedule", "cryptarithm", "decimal_arithmetic",
    "decimal_chain_sum", "dice", "family_relationships", "fraction_simplification", "gcd",
    "gsm_symbolic", "kakurasu", "knights_knaves", "largest_island", "lcm",
    "leg_counting", "letter_counting", "letter_jumble", "list_functions", "maze", "mini_sudoku",
    "number_filtering", "number_format", "number_sequence", "palindrome_generation", "path_star",
    "power_function", "products", "self_reference", "sentence_reordering",
    "shortest_path", "simple_equations", "simple_geometry", "spell_backward", "survo", "syllogism",
    "time_intervals", "word_sequence_reversal", "word_sorting",
)  # fmt: skip
"""Those with a short request and a short answer. Left out are tasks whose scorer runs an answer
as Python or hands it to sympy, which does the same (an answer is not to be trusted), and those
whose items differ from one process to the next."""


def reasoning_suite(profile: Profile, slot: str) -> Suite:
    """Build the suite, one item of each task in turn; the same everywhere for one version.

    Raises:
        PackageMissing: if reasoning-gym is not installed.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise PackageMissing("reasoning-gym")
    import reasoning_gym  # slow to import, and an extra

    made: dict[str, Item] = {}
    datasets = {name: reasoning_gym.create_dataset(name, size=ITEMS, seed=SEED) for name in TASKS}
    for index in range(ITEMS):
        for name, dataset in datasets.items():
            item = _item(profile, slot, name, dataset, dataset[index])
            made.setdefault(item.item_id, item)
    return Suite("reasoning-gym", slot, tuple(made.values()))


def reasoning_version() -> str:
    """Return the name and version of the scorers."""
    return f"reasoning-gym {importlib.metadata.version('reasoning-gym')}"


def _item(profile: Profile, slot: str, name: str, dataset: Any, entry: dict[str, Any]) -> Item:
    return outside_item(
        cluster=f"reasoning-gym-{name}",
        messages=asked(profile, slot, [Message(role="user", content=entry["question"])]),
        reference=[reasoning_version(), name, SEED, entry["answer"]],
        max_tokens=MAX_ANSWER_TOKENS,
        check=functools.partial(_check, dataset=dataset, entry=entry),
    )


def _check(answer: Message, *, dataset: Any, entry: dict[str, Any]) -> Check:
    from reasoning_gym.utils import extract_answer

    text = answer.content.strip()
    try:
        score = float(dataset.score_answer(extract_answer(text) or text, entry))
    except Exception as error:
        return Check(None, f"the scorer failed: {type(error).__name__}: {error}"[:160])
    if not 0 <= score <= 1:
        return Check(None, f"the scorer gave {score!r}, which is no grade from 0 to 1")
    return Check(score == 1, f"{score:.2f} of 1", score)
