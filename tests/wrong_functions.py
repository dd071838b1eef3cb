"""Bodies that somebody might write for the gate's functions, each with an error.

By kind and in the form of `promotion/suites/data/functions.toml`, whose tests must refuse them all.
"""

from collections.abc import Mapping, Sequence

WRONG: Mapping[str, Sequence[str]] = {
    "clamp_to_$k": ("return min(n, $k)", "return max(0, n)", "return n if 0 <= n <= $k else 0"),
    "gcd_with_$k": (
        "return max(d for d in range(1, n + 1) if n % d == $k % d == 0)",
        "a, b = n, $k\nwhile a % b:\n    a, b = b, a % b\nreturn b if n else 0",
        "return min(abs(n), $k) or $k",
    ),
    "is_prime": (
        "return all(n % d for d in range(2, n))",
        "return n > 1 and all(n % d for d in range(2, int(n**0.5)))",
        "return n > 2 and n % 2 == 1",
    ),
    "primes_from_$k": (
        "return [p for p in range($k, n) if all(p % d for d in range(2, p))]",
        "return [p for p in range($k + 1, n + 1) if all(p % d for d in range(2, p))]",
        "return [p for p in range(2, n + 1) if all(p % d for d in range(2, p))][:$k]",
    ),
    "digit_sum": (
        "total = 0\nwhile n > 0:\n    total += n % 10\n    n //= 10\nreturn total",
        "total = 0\nn = abs(n)\nwhile n > 9:\n    total += n % 10\n    n //= 10\nreturn total",
        "return abs(n) % 9",
    ),
    "digits_in_base_$k": (
        "digits = []\nwhile n:\n    digits.insert(0, n % $k)\n    n //= $k\nreturn digits",
        "digits = [n % $k]\nwhile n >= $k:\n    n //= $k\n    digits.append(n % $k)\nreturn digits",
        "digits = []\nwhile n > 0:\n    digits.append(n % $k)\n    n //= $k\nreturn digits or [0]",
    ),
    "round_down_to_$k": ("return int(n / $k) * $k", "return round(n / $k) * $k", "return n // $k"),
    "round_up_to_$k": ("return (n // $k + 1) * $k", "return n // $k * $k", "return n + n % $k"),
    "fibonacci": (
        "a, b = 1, 1\nfor _ in range(n):\n    a, b = b, a + b\nreturn a",
        "a, b = 0, 1\nfor _ in range(n - 1):\n    a, b = b, a + b\nreturn a",
    ),
    "divisors_above_$k": (
        "return [d for d in range($k, n + 1) if n % d == 0]",
        "return [d for d in range($k + 1, n) if n % d == 0]",
        "return [d for d in range($k + 1, int(n**0.5) + 1) if n % d == 0]",
    ),
    "is_power_of_$k": (
        "return n % $k == 0",
        "while n > $k and n % $k == 0:\n    n //= $k\nreturn n == $k",
        "while n > 1:\n    n //= $k\nreturn n == 1",
    ),
    "steps_to_one": (
        "steps = 1\nwhile n != 1:\n    steps += 1\n    n = 3 * n + 1 if n % 2 else n // 2\n"
        "return steps",
        "return len(bin(n)) - 3",
    ),
    "is_leap_year": (
        "return year % 4 == 0",
        "return year % 4 == 0 and year % 100 != 0",
    ),
    "clock_after_$k": (
        "h, m = map(int, time.split(':'))\nm += $k\nreturn f'{h + m // 60:02}:{m % 60:02}'",
        "h, m = map(int, time.split(':'))\nm += $k\nreturn f'{(h + m // 60) % 24}:{m % 60}'",
        "h, m = map(int, time.split(':'))\nreturn f'{h:02}:{(m + $k) % 60:02}'",
    ),
    "dates_in_$k": (
        "return [d for d in dates if '$month' in d]",
        "return [d for d in dates if d.endswith('$month')]",
        "return [d for d in dates if d[5:7] == '$month'][:1]",
    ),
    "date_with_$k": (
        "return date.replace('-', '$sign')",
        "y, m, d = date.split('-')\nreturn f'{m}$sign{d}$sign{y}'",
        "y, m, d = date.split('-')\nreturn f'{int(d)}$sign{int(m)}$sign{y}'",
        "return date[::-1].replace('-', '$sign')",
    ),
    "date_after_$k": (
        "return date[:8] + '%02d' % (int(date[8:]) + $k)",
        "from datetime import date as day, timedelta\n"
        "return str(day.fromisoformat(date) + timedelta($k - 1))",
        "y, m, d = map(int, date.split('-'))\nd += $k\n"
        "return f'{y}-{m + d // 31:02}-{d % 31 or 31:02}'",
    ),
    "rotate_left_$k": (
        "return items[$k:] + items[:$k]",
        "k = $k % max(1, len(items))\nreturn items[-k:] + items[:-k]",
        "k = $k % len(items)\nreturn items[k:] + items[:k]",
    ),
    "chunks_of_$k": (
        "return [items[i : i + $k] for i in range(0, len(items) - $k + 1, $k)]",
        "return [items[i : i + $k] for i in range(len(items))]",
        "return [items[i : i + $k] for i in range(0, len(items) + 1, $k)]",
        "return [items[i::$k] for i in range($k)]",
    ),
    "running_sum_from_$k": (
        "sums = [$k]\nfor n in numbers:\n    sums.append(sums[-1] + n)\nreturn sums",
        "return [$k + n for n in numbers]",
        "return [$k + sum(numbers[:i]) for i in range(len(numbers))]",
    ),
    "join_lists": (
        "return sum(lists, lists[0])",
        "return [y for x in lists for y in (join_lists(x) if isinstance(x, list) else [x])]",
        "return list(lists)",
    ),
    "flatten_deep": (
        "return [y for x in items for y in (x if isinstance(x, list) else [x])]",
        "return [y for x in items for y in (flatten_deep(x) if isinstance(x, list) else x)]",
    ),
    "drop_repeats": (
        "return sorted(set(items))",
        "return [x for i, x in enumerate(items) if x not in items[i + 1 :]]",
        "return [x for i, x in enumerate(items) if i == 0 or x != items[i - 1]]",
    ),
    "keep_at_most_$k": (
        "return [x for i, x in enumerate(items) if items[:i].count(x) <= $k]",
        "return [x for i, x in enumerate(items) if items[i + 1 :].count(x) < $k]",
        "return [x for x in items if items.count(x) <= $k]",
    ),
    "most_common": (
        "return max(items, key=items.count)",
        "return max(sorted(items), key=items.count, default=None)",
        "return max(items[::-1], key=items.count, default=None)",
        "return max(items, default=None)",
    ),
    "most_frequent_$k": (
        "from collections import Counter\nreturn [w for w, _ in Counter(words).most_common($k)]",
        "return sorted(set(words), key=words.count)[::-1][:$k]",
        "return sorted(words, key=lambda w: (-words.count(w), w))[:$k]",
        "return sorted(set(words))[:$k]",
    ),
    "interleave": (
        "return [x for pair in zip(a, b) for x in pair]",
        "return [x for pair in zip(b, a) for x in pair] + a[len(b):] + b[len(a):]",
        "return a + b",
        "from itertools import zip_longest\nreturn [x for pair in zip_longest(a, b) for x in pair]",
    ),
    "take_every_$k": (
        "return items[::$k]",
        "return items[$k::$k]",
        "return items[$k - 1 :]",
        "return items[$k - 1 :: $k + 1]",
    ),
    "fill_up_to_$k": (
        "return items + [None] * ($k - len(items))",
        "return ([None] * $k + items)[-$k:]",
        "return items[:$k]",
        "return items[:$k] or [None] * $k",
    ),
    "swap_ends": (
        "return [items[-1], *items[1:-1], items[0]]",
        "return items[-1:] + items[1:-1] + items[:1]",
        "return items[::-1]",
    ),
    "pairs_adding_to_$k": (
        "return sum(a + b == $k for a in numbers for b in numbers)",
        "return sum($k - n in numbers for n in numbers) // 2",
        "return sum(a + b == $k for i, a in enumerate(numbers) for b in numbers[i:])",
        "return sum(n < $k - n and $k - n in numbers for n in set(numbers))",
    ),
    "second_largest": (
        "return sorted(numbers)[-2] if len(numbers) > 1 else None",
        "return sorted(set(numbers))[-2]",
        "return sorted(set(numbers))[1] if len(set(numbers)) > 1 else None",
    ),
    "place_of_largest": (
        "return numbers.index(max(numbers)) if numbers else -1",
        "return max(range(len(numbers)), key=lambda i: (numbers[i], i))",
        "best = -1\nfor i, n in enumerate(numbers):\n"
        "    if n >= (numbers[best] if best >= 0 else 0):\n        best = i\nreturn best",
    ),
    "never_falls": (
        "return all(a < b for a, b in zip(numbers, numbers[1:]))",
        "return all(a <= b for a, b in zip(numbers[::2], numbers[1::2]))",
        "return numbers[0] == min(numbers) and numbers[-1] == max(numbers)",
        "return numbers == sorted(numbers) and len(numbers) > 0",
    ),
    "split_at_$k": (
        "return [n for n in numbers if n <= $k], [n for n in numbers if n > $k]",
        "return sorted(n for n in numbers if n < $k), sorted(n for n in numbers if n >= $k)",
        "return [n for n in numbers if n >= $k], [n for n in numbers if n < $k]",
        "return numbers[:$k], numbers[$k:]",
    ),
    "median": (
        "return numbers[len(numbers) // 2]",
        "return sorted(numbers)[len(numbers) // 2]",
        "n = len(numbers)\nreturn (numbers[n // 2] + numbers[(n - 1) // 2]) / 2",
        "return sum(numbers) / len(numbers)",
    ),
    "sums_of_$k": (
        "return [sum(numbers[i : i + $k]) for i in range(len(numbers) - $k)]",
        "return [sum(numbers[i : i + $k]) for i in range(len(numbers))]",
        "return [sum(numbers[i : i + $k]) for i in range(0, len(numbers) - $k + 1, $k)]",
    ),
    "is_palindrome": (
        "return text == text[::-1]",
        "return text.lower() == text.lower()[::-1]",
        "kept = [c for c in text if c.isalnum()]\nreturn kept == kept[::-1]",
        "kept = [c.lower() for c in text if c.isalpha()]\nreturn kept == kept[::-1]",
    ),
    "count_words": (
        "words = text.split()\nreturn {w: words.count(w) for w in words}",
        "words = text.lower().split(' ')\nreturn {w: words.count(w) for w in words}",
        "words = text.lower().split()\nreturn {w: text.lower().count(w) for w in words}",
        "return len(text.split())",
    ),
    "caesar_$k": (
        "return ''.join(chr(ord(c) + $k) if 'a' <= c <= 'z' else c for c in text)",
        "return ''.join(chr((ord(c) - 97 + $k) % 26 + 97) for c in text)",
        "return ''.join(chr((ord(c) - 97 - $k) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)",
        "return ''.join(chr((ord(c) - 97 + $k) % 25 + 97) if 'a' <= c <= 'z' else c for c in text)",
    ),
    "run_lengths": (
        "return [(c, text.count(c)) for c in dict.fromkeys(text)]",
        "runs, n = [], 1\nfor a, b in zip(text, text[1:]):\n    if a == b:\n        n += 1\n"
        "    else:\n        runs.append((a, n))\n        n = 1\nreturn runs",
        "from itertools import groupby\nreturn [(len(list(run)), c) for c, run in groupby(text)]",
    ),
    "title_case": (
        "return text.title()",
        "return text.capitalize()",
        "return ' '.join(w.capitalize() for w in text.split())",
        "return ' '.join(w[:1].upper() + w[1:] for w in text.split(' '))",
    ),
    "initials": (
        "return ''.join(w[0] + '.' for w in name.split())",
        "return ''.join(w[0].upper() + '.' for w in name.split(' '))",
        "return '.'.join(w[0].upper() for w in name.split())",
        "return ''.join(c + '.' for c in name if c.isupper())",
    ),
    "snake_case": (
        "return ''.join('_' + c.lower() if c.isupper() else c for c in name)",
        "import re\nreturn re.sub('([a-z])([A-Z])', '\\\\1_\\\\2', name).lower()",
        "return ''.join('_' * (i > 0 and c.isupper()) + c for i, c in enumerate(name))",
    ),
    "hide_all_but_$k": (
        "return text[:$k] + '*' * (len(text) - $k)",
        "return '*' * len(text[:-$k]) + text[-$k:] if len(text) > $k else '*' * len(text)",
        "return '*' * $k + text[$k:]",
        "return '*' * (len(text) - $k + 1) + text[-$k + 1 :]",
    ),
    "shorten_to_$k": (
        "return text if len(text) < $k else text[:$kept] + '...'",
        "return text if len(text) <= $k else text[:$k] + '...'",
        "return text[:$kept] + '...'",
        "return text[:$k]",
    ),
    "are_anagrams": (
        "return set(a.lower()) - {' '} == set(b.lower()) - {' '}",
        "return sorted(a) == sorted(b)",
        "return sorted(a.lower()) == sorted(b.lower())",
        "return all(c in a.lower() for c in b.lower().replace(' ', ''))",
    ),
    "common_start": (
        "n = 0\nwhile n < len(min(words)) and len({w[: n + 1] for w in words}) == 1:\n    n += 1\n"
        "return words[0][:n]",
        "n = 0\nwhile len({w[n] for w in words}) == 1:\n    n += 1\nreturn words[0][:n]",
        "import os\nreturn os.path.commonprefix(words[:2])",
        "return ''.join(c for c in words[0] if all(c in w for w in words)) if words else ''",
    ),
    "closes_$k": (
        "return text.count('$open') == text.count('$shut')",
        "depth = 0\nfor c in text:\n    depth += (c == '$open') - (c == '$shut')\n"
        "    if depth < 0:\n        return False\nreturn True",
        "return text.find('$open') <= text.find('$shut')",
    ),
    "inside_$k": (
        "return text[text.find('$open') + 1 : text.find('$shut')]",
        "return text[text.find('$open') + 1 : text.rfind('$shut')]",
        "return text.partition('$open')[2].partition('$shut')[0]",
        "return text[text.index('$open') + 1 : text.index('$shut')]",
    ),
    "names_by_value": (
        "return {value: name for name, value in values.items()}",
        "return {value: [name] for name, value in values.items()}",
        "found = {}\nfor name in values:\n    found.setdefault(values[name], []).append(name)\n"
        "return found",
    ),
    "add_counts": (
        "return {**a, **b}",
        "return {key: a[key] + b[key] for key in a if key in b}",
        "for key in b:\n    a[key] = a.get(key, 0) + b[key]\nreturn a",
        "from collections import Counter\nreturn dict(Counter(a) + Counter(b))",
    ),
    "by_remainder_$k": (
        "import math\ngroups = {}\nfor n in numbers:\n"
        "    groups.setdefault(int(math.fmod(n, $k)), []).append(n)\nreturn groups",
        "return {r: [n for n in numbers if n % $k == r] for r in range($k)}",
        "return {n % $k: [n] for n in numbers}",
        "return {n % $k: sorted(m for m in numbers if (m - n) % $k == 0) for n in numbers}",
    ),
    "keys_above_$k": (
        "return sorted(key for key in scores if scores[key] >= $k)",
        "return [key for key in scores if scores[key] > $k]",
        "return sorted(value for value in scores.values() if value > $k)",
    ),
    "winner": (
        "return max(scores, key=scores.get, default=None)",
        "return max(scores, key=lambda name: (scores[name], name), default=None)",
        "return min(scores, key=lambda name: (-scores[name], name))",
        "return min(scores, default=None)",
    ),
    "look_up": (
        "for key in path.split('.'):\n    data = data[key]\nreturn data",
        "for key in path.split('.'):\n    data = data.get(key) or {}\nreturn data or None",
        "return data.get(path)",
        "for key in path.split('.'):\n    if key not in data:\n        return None\n"
        "    data = data[key]\nreturn data",
    ),
    "sort_by_second": (
        "return sorted(pairs)",
        "return sorted(pairs, key=lambda pair: (pair[1], pair[0]))",
        "return sorted(pairs, key=lambda pair: pair[1], reverse=True)",
        "return sorted(pairs, key=lambda pair: abs(pair[1]))",
    ),
    "min_and_max": (
        "return min(numbers), max(numbers)",
        "return (numbers[0], numbers[-1]) if numbers else (None, None)",
        "return max(numbers, default=None), min(numbers, default=None)",
        "return min(numbers, default=None) or None, max(numbers, default=None) or None",
    ),
    "spans_meet": (
        "return a[0] < b[1] and b[0] < a[1]",
        "return a[0] <= b[0] <= a[1]",
        "return a[0] <= b[0] <= a[1] or a[0] <= b[1] <= a[1]",
        "return b[0] <= a[1]",
    ),
    "grid_distance": (
        "return sum(a - b for a, b in zip(p, q))",
        "return abs(sum(a - b for a, b in zip(p, q)))",
        "return sum((a - b) ** 2 for a, b in zip(p, q)) ** 0.5",
        "return abs(p[0] - q[0]) + abs(p[1] - q[1])",
    ),
    "only_in_one": (
        "return sorted(set(a) - set(b))",
        "return [x for x in a if x not in b] + [x for x in b if x not in a]",
        "return sorted([x for x in a if x not in b] + [x for x in b if x not in a])",
        "return sorted(x for x in set(a + b) if (a + b).count(x) == 1)",
    ),
    "with_count_$k": (
        "return {x for x in items if items.count(x) >= $k}",
        "return {x for x in items if items.count(x) > $k}",
        "return [x for x in items if items.count(x) == $k]",
    ),
    "missing_up_to_$k": (
        "return [n for n in range(1, $k) if n not in numbers]",
        "return [n for n in range($k + 1) if n not in numbers]",
        "return [n for n in range(min(numbers), $k + 1) if n not in numbers]",
        "return [n for n in range(1, $k - len(numbers) + 1)]",
    ),
}
