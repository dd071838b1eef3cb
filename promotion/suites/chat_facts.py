"""What the short questions (L0) are about: for each topic, values to ask for and the right answers.

A fact's first answer is the one to write; the others are as right. No answer stands in its own
question, so that repeating the question is never right, and none is part of a wrong one. What is
right of another question of the topic must not be said beside it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

from traces.verifiers.short_answer import word_line

# fmt: off
_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
          "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen",
          "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that can be asked."""

    values: Mapping[str, object]
    """What fills the fields of a phrasing."""
    accepted: tuple[str, ...]
    """Right answers."""


def number_name(n: int) -> str:
    """Return the name of a number from 0 to 99."""
    if n < len(_NAMES):
        return _NAMES[n]
    ten, one = divmod(n, 10)
    return _TENS[ten - 2] + (f"-{_NAMES[one]}" if one else "")


def in_digits(n: int) -> tuple[str, ...]:
    """Return how a number is written in digits."""
    return tuple(dict.fromkeys((str(n), f"{n:,}", f"{n:,}".replace(",", " "))))


def sum_fact(a: int, b: int) -> Fact:
    """Return what two small numbers make."""
    return Fact({"a": a, "b": b}, _accepted(a + b))


def _accepted(answer: str | int) -> tuple[str, ...]:
    if isinstance(answer, str):
        return tuple(answer.split("|"))
    return (str(answer), number_name(answer))


def _table(answers: Mapping[str, str | int]) -> tuple[Fact, ...]:
    return tuple(Fact({"key": key}, _accepted(answers[key])) for key in sorted(answers))


def _tables(answers: Mapping[str, Mapping[str, str | int]]) -> tuple[Fact, ...]:
    return tuple(
        # Quantities are asked for in digits: many are round, and "sixty-five" has "sixty" in it.
        Fact(
            {"key": key, "to": to},
            in_digits(answer) if isinstance(answer, int) else _accepted(answer),
        )
        for to, table in answers.items()
        for key, answer in table.items()
    )


def _pairs(pairs: Iterable[tuple[int, int, int]]) -> tuple[Fact, ...]:
    return tuple(Fact({"a": a, "b": b}, _accepted(result)) for a, b, result in pairs)


# fmt: off
_CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin",
             "Japan": "Tokyo", "Norway": "Oslo", "Peru": "Lima", "Egypt": "Cairo",
             "Greece": "Athens", "Austria": "Vienna", "Russia": "Moscow", "China": "Beijing",
             "Poland": "Warsaw", "Portugal": "Lisbon", "Ireland": "Dublin", "Cuba": "Havana"}
_OPPOSITES = {"hot": "cold", "big": "small|little", "up": "down", "day": "night",
              "old": "young|new", "fast": "slow", "happy": "sad|unhappy", "light": "dark|heavy",
              "open": "closed|shut", "wet": "dry", "early": "late", "strong": "weak"}
_YOUNG = {"dog": "puppy|pup", "cat": "kitten", "cow": "calf", "sheep": "lamb", "horse": "foal",
          "lion": "cub", "duck": "duckling", "frog": "tadpole"}

_PLURALS = {"mouse": "mice", "child": "children", "foot": "feet", "tooth": "teeth",
            "goose": "geese", "man": "men", "woman": "women", "knife": "knives", "wolf": "wolves",
            "leaf": "leaves", "shelf": "shelves", "baby": "babies", "city": "cities",
            "box": "boxes", "tomato": "tomatoes", "potato": "potatoes", "bus": "buses|busses",
            "lady": "ladies", "loaf": "loaves", "brush": "brushes"}
_PAST = {"go": "went", "see": "saw", "eat": "ate", "take": "took", "give": "gave", "come": "came",
         "write": "wrote", "drink": "drank", "sing": "sang", "run": "ran", "buy": "bought",
         "think": "thought", "bring": "brought", "teach": "taught", "find": "found",
         "sell": "sold", "fly": "flew", "know": "knew", "swim": "swam", "begin": "began",
         "speak": "spoke", "break": "broke", "drive": "drove", "sleep": "slept"}
_LEGS = {"spider": 8, "scorpion": 8, "bee": 6, "beetle": 6, "wasp": 6, "mosquito": 6,
         "hen": 2, "duck": 2, "pigeon": 2, "horse": 4, "cow": 4, "goat": 4, "lion": 4, "zebra": 4}
_SIDES = {"triangle": 3, "square": 4, "rectangle": 4, "rhombus": 4, "pentagon": 5, "hexagon": 6,
          "heptagon": 7, "nonagon": 9, "decagon": 10, "dodecagon": 12}
_ROMAN = {"4": "IV", "6": "VI", "7": "VII", "8": "VIII", "9": "IX", "11": "XI",
          "12": "XII", "13": "XIII", "14": "XIV", "15": "XV", "16": "XVI", "18": "XVIII",
          "19": "XIX", "20": "XX", "24": "XXIV", "34": "XXXIV", "40": "XL", "60": "LX", "90": "XC"}
_LANGUAGES = {"Brazil": "Portuguese", "Mexico": "Spanish", "Japan": "Japanese",
              "Germany": "German", "Austria": "German", "Egypt": "Arabic", "France": "French",
              "Italy": "Italian", "Poland": "Polish", "Sweden": "Swedish", "Greece": "Greek",
              "Turkey": "Turkish", "Hungary": "Hungarian", "Portugal": "Portuguese",
              "Argentina": "Spanish", "Vietnam": "Vietnamese", "Denmark": "Danish",
              "Cuba": "Spanish", "Iran": "Persian|Farsi", "Bulgaria": "Bulgarian",
              "Russia": "Russian", "Romania": "Romanian"}
_CURRENCIES = {"Japan": "yen|JPY", "Poland": "zloty|zlotys|złoty|zlotych|PLN",
               "China": "yuan|renminbi|RMB|CNY", "Israel": "shekel|shekels|sheqel|ILS",
               "Thailand": "baht|THB", "Vietnam": "dong|đồng|VND",
               "South Africa": "rand|rands|ZAR", "Germany": "euro|euros|EUR",
               "Portugal": "euro|euros|EUR", "Hungary": "forint|forints|HUF",
               "Ukraine": "hryvnia|hryvnias|hryvnya|UAH", "Malaysia": "ringgit|ringgits|MYR",
               "Indonesia": "rupiah|rupiahs|IDR", "Bangladesh": "taka|takas|BDT",
               "Nigeria": "naira|nairas|NGN", "Ghana": "cedi|cedis|GHS",
               "Peru": "sol|soles|PEN", "Kazakhstan": "tenge|KZT",
               "Guatemala": "quetzal|quetzals|quetzales|GTQ"}
"""None whose name other countries' currencies have too: a dollar may be any."""
_MIXED = {"red and yellow": "orange", "yellow and red": "orange", "blue and yellow": "green",
          "yellow and blue": "green", "red and blue": "purple|violet",
          "blue and red": "purple|violet", "black and white": "grey|gray",
          "white and black": "grey|gray", "red and white": "pink", "white and red": "pink",
          "red and green": "brown", "green and red": "brown"}
_SYMBOLS = {"gold": "Au", "silver": "Ag", "iron": "Fe", "copper": "Cu", "lead": "Pb", "tin": "Sn",
            "sodium": "Na", "potassium": "K", "hydrogen": "H", "oxygen": "O", "carbon": "C",
            "nitrogen": "N", "calcium": "Ca", "zinc": "Zn", "mercury": "Hg", "chlorine": "Cl",
            "neon": "Ne", "magnesium": "Mg", "silicon": "Si", "nickel": "Ni", "lithium": "Li",
            "fluorine": "F", "uranium": "U", "platinum": "Pt"}
_CONTINENTS = {"Kenya": "Africa", "Nigeria": "Africa", "Ghana": "Africa", "Ethiopia": "Africa",
               "Brazil": "South America", "Peru": "South America", "Chile": "South America",
               "Argentina": "South America", "Canada": "North America", "Japan": "Asia",
               "India": "Asia", "Vietnam": "Asia", "Thailand": "Asia", "Mongolia": "Asia",
               "Germany": "Europe", "Spain": "Europe", "Poland": "Europe", "Sweden": "Europe"}
_COMPARATIVES = {"good": "better", "bad": "worse", "big": "bigger", "happy": "happier",
                 "easy": "easier", "tall": "taller", "hot": "hotter", "fast": "faster",
                 "cheap": "cheaper", "strong": "stronger", "small": "smaller", "early": "earlier",
                 "thin": "thinner", "heavy": "heavier", "nice": "nicer", "busy": "busier",
                 "far": "farther|further", "wet": "wetter"}
_FEMALES = {"king": "queen", "lion": "lioness", "actor": "actress", "uncle": "aunt|auntie",
            "brother": "sister", "father": "mother", "son": "daughter", "husband": "wife",
            "nephew": "niece", "prince": "princess", "boy": "girl", "duke": "duchess",
            "grandfather": "grandmother", "waiter": "waitress", "stallion": "mare",
            "widower": "widow", "emperor": "empress", "ram": "ewe", "tiger": "tigress",
            "rooster": "hen", "grandson": "granddaughter"}
_KIN = {"mother's sister": "aunt|auntie", "father's sister": "aunt|auntie",
        "mother's brother": "uncle", "father's brother": "uncle",
        "mother's mother": "grandmother|grandma|granny|gran",
        "father's mother": "grandmother|grandma|granny|gran",
        "mother's father": "grandfather|grandpa|granddad|grandad",
        "father's father": "grandfather|grandpa|granddad|grandad",
        "sister's son": "nephew", "brother's son": "nephew", "sister's daughter": "niece",
        "brother's daughter": "niece", "uncle's child": "cousin", "aunt's daughter": "cousin",
        "son's daughter": "granddaughter|grandchild", "daughter's son": "grandson|grandchild"}
_ORDINALS = {"one": "first|1st", "two": "second|2nd", "three": "third|3rd", "four": "fourth|4th",
             "five": "fifth|5th", "eight": "eighth|8th", "nine": "ninth|9th",
             "ten": "tenth|10th", "eleven": "eleventh|11th", "twelve": "twelfth|12th",
             "thirteen": "thirteenth|13th", "fifteen": "fifteenth|15th",
             "twenty": "twentieth|20th", "thirty": "thirtieth|30th"}
_TRADES = {"teaches children at school": "teacher|schoolteacher", "bakes bread": "baker",
           "flies planes": "pilot|aviator|airman", "pulls out bad teeth": "dentist",
           "sells meat": "butcher", "grows crops": "farmer", "takes photos": "photographer",
           "repairs water pipes": "plumber", "designs buildings": "architect",
           "plays the piano": "pianist", "plays the drums": "drummer|percussionist",
           "plays the violin": "violinist|fiddler", "sells flowers": "florist|flower seller",
           "catches fish": "fisherman|fisher|angler", "cooks in a restaurant": "cook|chef",
           "treats sick animals": "vet|veterinarian|veterinary surgeon",
           "travels into space": "astronaut|cosmonaut|spaceman", "drives a taxi":
           "cabbie|cabby|cabdriver|cab driver|taxi driver|chauffeur",
           "puts out fires": "firefighter|fireman|fire fighter",
           "cuts people's hair": "hairdresser|barber|hair stylist|hairstylist"}
_WORDS_ABROAD = {
    "Spanish": {"house": "casa", "water": "agua", "dog": "perro|perra", "cat": "gato|gata",
                "book": "libro", "milk": "leche", "sun": "sol", "tree": "árbol|arbol"},
    "French": {"house": "maison", "water": "eau", "dog": "chien|chienne", "cat": "chat|chatte",
               "book": "livre", "milk": "lait", "sun": "soleil", "tree": "arbre"},
    "German": {"house": "Haus", "water": "Wasser", "dog": "Hund", "cat": "Katze|Kater",
               "book": "Buch", "milk": "Milch", "sun": "Sonne", "tree": "Baum"},
    "Italian": {"house": "casa", "water": "acqua", "dog": "cane", "cat": "gatto|gatta",
                "book": "libro", "milk": "latte", "sun": "sole", "tree": "albero"},
}
_UNITS = {
    "minutes": {"2 hours": 120, "3 hours": 180, "4 hours": 240, "a quarter of an hour": 15},
    "seconds": {"2 minutes": 120, "3 minutes": 180, "5 minutes": 300, "10 minutes": 600},
    "hours": {"2 days": 48, "3 days": 72, "one day and a half": 36},
    "days": {"2 weeks": 14, "3 weeks": 21, "5 weeks": 35},
    "months": {"3 years": 36, "one year and a half": 18, "8 years": 96},
    "grams": {"2 kilograms": 2000, "5 kilograms": 5000, "half a kilogram": 500},
    "metres": {"3 kilometres": 3000, "half a kilometre": 500, "7 kilometres": 7000},
    "centimetres": {"2 metres": 200, "6 metres": 600, "half a metre": 50},
    "millimetres": {"9 centimetres": 90, "8 centimetres": 80},
    "inches": {"one foot": 12, "4 feet": 48, "6 feet": 72},
}
"""None is what one counts with on the way to another: 2 hours are 2 times 60 minutes."""
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August",
           "September", "October", "November", "December")
_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_NOT_LETTERS = "AIDMST"
"""Letters that are words, or what stands before or after an apostrophe."""
_TURNED = ("pot", "net", "rat", "tab", "pin", "bus", "gum", "lap", "room", "stop", "star", "step",
           "wolf", "time", "parts", "loop", "keep", "tool", "bird", "milk", "lamp", "cup", "hat",
           "spoon", "drawer", "garden", "apple", "chair", "bread", "snow")
_SPELLED = ("cat", "dog", "lamp", "milk", "bread", "table", "garden", "window", "kitchen",
            "blanket", "mountain", "elephant", "breakfast", "chocolate", "strawberry", "photograph")
_ENDINGS = ("garden", "apple", "star", "lamp", "book", "bell", "happy", "window", "box", "ring",
            "fish", "roof", "web", "music", "cheese")
# fmt: on

_TURNS = {_DAYS[i]: _DAYS[(i + 1) % 7] for i in range(7)}
_NEXT_MONTHS = {_MONTHS[i]: _MONTHS[(i + 1) % 12] for i in range(12) if _MONTHS[i] != "April"}
"""Without May, which is also a verb."""

ADDENDS = range(1, 10)
"""What a sum is asked of."""

# In words "twenty" is part of "twenty-four", and so is "four". So the numbers of one topic whose
# words are accepted are all below 20, or all above and no tens.
FACTS: Mapping[str, tuple[Fact, ...]] = {
    "capital": _table(_CAPITALS),
    "opposite": _table(_OPPOSITES),
    "young": _table(_YOUNG),
    "sum": tuple(sum_fact(a, b) for a, b in product(ADDENDS, repeat=2)),
    "plural": _table(_PLURALS),
    "past": _table(_PAST),
    "legs": _table(_LEGS),
    "sides": _table(_SIDES),
    "roman": _table(_ROMAN),
    "language": _table(_LANGUAGES),
    "currency": _table(_CURRENCIES),
    "mix": _table(_MIXED),
    "symbol": _table(_SYMBOLS),
    "continent": _table(_CONTINENTS),
    "comparative": _table(_COMPARATIVES),
    "female": _table(_FEMALES),
    "kin": _table(_KIN),
    "ordinal": _table(_ORDINALS),
    "trade": _table(_TRADES),
    "translation": _tables(_WORDS_ABROAD),
    "units": _tables(_UNITS),
    "day-after": _table(_TURNS),
    "day-before": _table({after: before for before, after in _TURNS.items()}),
    "month-after": _table(_NEXT_MONTHS),
    "letter-after": _table({a: b for a, b in pairwise(_ALPHABET) if b not in _NOT_LETTERS}),
    "backwards": _table({word: f"{word[::-1]}|{' '.join(word[::-1])}" for word in _TURNED}),
    "letters": _table({word: len(word) for word in _SPELLED}),
    "last-letter": _table({word: word[-1].upper() for word in _ENDINGS}),
    "difference": _pairs(
        (a, b, a - b) for a in range(11, 21) for b in range(2, 10) if a - b not in (a, b)
    ),
    "product": _pairs(
        (a, b, a * b) for a, b in product(range(3, 10), repeat=2) if a * b > 20 and a * b % 10
    ),
    "double": _table({str(n): 2 * n for n in range(11, 50) if n % 5}),
    "half": _table({str(n): n // 2 for n in range(8, 40, 2)}),
    "digits": _table({number_name(n): str(n) for n in range(13, 100) if n % 10}),
    "sequence": _table(
        {
            ", ".join(str(start + i * step) for i in range(4)): start + 4 * step
            for start, step in product(range(1, 6), range(2, 5))
            if start + 4 * step < 20
        }
    ),
}

_IN_PASSING = frozenset(["two"])
"""Said of any two things, whatever they come to."""


def other_answers(topic: str, fact: Fact, question: str) -> tuple[str, ...]:
    """Return what answers other facts of a topic, and of this one is neither right nor asked.

    What the question says may be said again, in whatever form: 2 and 3, or two and three, are 5.
    """
    asked = word_line(question)
    right = {word_line(answer) for answer in fact.accepted}
    others = [
        answer
        for lines in _answers(topic)
        if not any(line in asked for line in lines)
        for line, answer in lines.items()
        if line not in right
    ]
    if topic == "last-letter":
        spelled = str(fact.values["key"]).upper()
        others = [letter for letter in others if letter not in spelled]
    return tuple(dict.fromkeys(others))


@cache
def _answers(topic: str) -> tuple[Mapping[str, str], ...]:
    """Return the right answers of each fact by the words they are looked for by.

    Small numbers are all those that the answers lie among: 43 is an answer to 6 times 7, too.
    """
    answers = list(dict.fromkeys(fact.accepted for fact in FACTS[topic]))
    if all(answer[0].isdigit() for answer in answers):
        numbers = [int(answer[0]) for answer in answers]
        if max(numbers) < 100:
            answers = [_accepted(n) for n in range(min(numbers), max(numbers) + 1)]
    return tuple(
        {word_line(answer): answer for answer in accepted if answer not in _IN_PASSING}
        for accepted in answers
    )
