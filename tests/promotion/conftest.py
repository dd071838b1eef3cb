"""A registry with four versions of L2 in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from registry_records import SLOTS, version_of

from promotion.registry import Registry


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with Registry.open(tmp_path, SLOTS) as opened:
        for number in range(1, 5):
            opened.register(version_of(number))
        yield opened
