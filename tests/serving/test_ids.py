"""Proves that ids differ, also between a process and its child."""

import os
import re

from serving.ids import new_id


def test_ids_are_32_digits_and_none_comes_twice() -> None:
    ids = [new_id() for _ in range(2000)]

    assert len(set(ids)) == 2000
    assert all(re.fullmatch("[0-9a-f]{32}", one) for one in ids)


def test_a_child_process_makes_ids_of_its_own() -> None:
    new_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 32).decode()
    os.close(read)
    os.close(write)

    assert theirs not in {new_id() for _ in range(300)}
