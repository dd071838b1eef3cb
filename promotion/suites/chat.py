"""Short questions (L0) with one right answer."""

import random
from collections.abc import Mapping

from promotion.suites.task import Partition, Phrasings, Task, assistant

# fmt: off
_CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
             "Japan": "Tokyo", "Norway": "Oslo", "Peru": "Lima", "Egypt": "Cairo",
             "Greece": "Athens", "Austria": "Vienna", "Russia": "Moscow", "China": "Beijing",
             "Poland": "Warsaw", "Portugal": "Lisbon", "Ireland": "Dublin", "Cuba": "Havana"}
_OPPOSITES = {"hot": "cold", "big": "small", "up": "down", "day": "night", "old": "young",
              "fast": "slow", "happy": "sad", "light": "dark", "open": "closed", "wet": "dry",
              "early": "late", "strong": "weak"}
_YOUNG = {"dog": "puppy", "cat": "kitten", "cow": "calf", "sheep": "lamb", "horse": "foal",
          "lion": "cub", "duck": "duckling", "frog": "tadpole"}
# fmt: on

# fmt: off
_TOPICS: Mapping[str, tuple[Mapping[str, str], Phrasings]] = {
    "capital": (_CAPITALS, Phrasings(
        seed=("What is the capital of {key}?",),
        traffic=("Which city is the capital of {key}?", "Name the capital of {key}.",
                 "{key} has which capital?"),
        gate=("Do you know the capital city of {key}?", "What do they call the capital of {key}?",
              "Capital of {key}, please.", "Which capital does {key} have?",
              "I forgot the capital of {key}.", "Tell me what the capital of {key} is.",
              "The government of {key} sits in which capital?", "{key}: capital?"),
    )),
    "opposite": (_OPPOSITES, Phrasings(
        seed=("What is the opposite of {key}?",),
        traffic=("Tell me the opposite of {key}.", "Which word means the opposite of {key}?",
                 "The opposite of {key} is what?"),
        gate=("Give me a word that is the opposite of {key}.", "What word is contrary to {key}?",
              "Opposite of {key}, please.", "I need the opposite of the word {key}.",
              "If it is not {key}, it is what?", "Say the opposite of {key}.",
              "What would you call the opposite of {key}?", "{key}: opposite?"),
    )),
    "young": (_YOUNG, Phrasings(
        seed=("What is a young {key} called?",),
        traffic=("What do you call a baby {key}?", "Name the young of a {key}.",
                 "A young {key} is called what?"),
        gate=("How do people call the baby of a {key}?", "Which word names a baby {key}?",
              "Baby of a {key}, please.", "I need the word for a young {key}.",
              "A {key} gives birth to a what?", "Say what a young {key} is called.",
              "What would you call the young of a {key}?", "{key}: name of the young?"),
    )),
}
# fmt: on
_SUMS = Phrasings(
    seed=("What is {a} plus {b}?",),
    traffic=("How much is {a} plus {b}?", "Add {a} and {b}.", "{a} + {b} = ?"),
    gate=(
        "What do {a} and {b} make together?",
        "Tell me the sum of {a} and {b}.",
        "{a} and {b} make what?",
        "Sum of {a} and {b}, please.",
        "I have {a} and get {b} more.",
        "Count {a} and {b} together.",
        "What comes out of {a} plus {b}?",
        "{a} plus {b}: result?",
    ),
)


def make_chat_task(rng: random.Random, partition: Partition) -> Task:
    """Make one short question."""
    topic = rng.choice((*sorted(_TOPICS), "sum"))
    if topic == "sum":
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        template, text = _SUMS.pick(rng, partition, {"a": a, "b": b})
        return _task(f"sum-{template}", text, str(a + b))
    answers, phrasings = _TOPICS[topic]
    key = rng.choice(sorted(answers))
    template, text = phrasings.pick(rng, partition, {"key": key})
    return _task(f"{topic}-{template}", text, answers[key])


def _task(template: str, text: str, right: str) -> Task:
    return Task(
        slot="L0",
        template=f"chat-{template}",
        text=text[0].upper() + text[1:],
        answer=assistant(f"{right[0].upper()}{right[1:]}."),
        reference={"verifier": "short_answer", "accepted": [right]},
        keywords=(right,),
    )
