"""Upkeep in a process of its own that is killed after so many statements."""

import subprocess
import sys
from datetime import date
from pathlib import Path

from traces.config import LakeConfig

_KILLED = """
import os, signal, sys
from datetime import date
from pathlib import Path
from traces.config import LakeConfig
from traces.storage.lake import Lake
from traces.storage.upkeep import Upkeep

class Counted:
    # The connection, until it has run so many statements; then the process is killed.
    def __init__(self, real, left): self.real, self.left = real, left
    def execute(self, *arguments):
        self.left -= 1
        if self.left < 0: os.kill(os.getpid(), signal.SIGKILL)
        return self.real.execute(*arguments)
    def __getattr__(self, name): return getattr(self.real, name)

config = LakeConfig.model_validate_json(sys.argv[2])
lake = Lake.open(Path(sys.argv[1]))
counted = lake.connection = Counted(lake.connection, int(sys.argv[4]))
Upkeep(lake, config, frozenset(), date.fromisoformat(sys.argv[3])).carry_out(lambda *_: None)
print(int(sys.argv[4]) - counted.left)
"""


def counted_upkeep(
    home: Path, config: LakeConfig, today: date, statements: int
) -> subprocess.CompletedProcess[str]:
    """Run upkeep; it prints how many statements it took if it was not killed before."""
    words = [home, config.model_dump_json(), today.isoformat(), statements]
    return subprocess.run(
        [sys.executable, "-c", _KILLED, *map(str, words)],
        check=False,
        capture_output=True,
        text=True,
    )
