"""What an outside suite needs and does not find here, and how to get it."""

from pathlib import Path

from serving.errors import MolError


class PackageMissing(MolError, ImportError):
    """A suite's package is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"The package {package!r} is not installed. Install the extra it is in: "
            "pip install -c constraints.txt -e '.[suites]'"
        )


class EnvironmentMissing(MolError, FileNotFoundError):
    """The environment of its own that a suite's package lives in is not there."""


def python_of(venv: Path, install: str) -> str:
    """Return the Python of an environment that `install` made.

    Raises:
        EnvironmentMissing: if there is none, or it is not finished.
    """
    python = venv.absolute() / "bin" / "python"
    if not python.exists() or not (venv / "installed").exists():
        raise EnvironmentMissing(
            f"No finished environment in {str(venv)!r}. Make it with '{install}', or name "
            "another folder in the settings under 'suites'."
        )
    return str(python)
