"""Errors of the traces package that more than one module raises."""

from serving.errors import MolError


class LakeUnavailable(MolError, OSError):
    """The lake cannot be opened or written: corrupt catalog, foreign file, full disk, busy."""


class LakeNotFound(MolError, FileNotFoundError):
    """There is no lake under this home yet."""


class InputRefused(MolError, ValueError):
    """The source holds nothing that can be ingested; the lake has not changed."""


class QueryRefused(MolError, ValueError):
    """The SQL would write, or DuckDB rejects it."""


class TurnNotFound(MolError, LookupError):
    """No turn, or more than one, has this id or prefix."""
