"""A task of inspect-ai: sums, with a tool that adds. It runs in .venv-inspect, not here.

flows suites score examples/suites/sums_task.py@sums --slot L0
"""

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool


@tool
def add() -> Tool:
    """Offer the sum of two numbers."""

    async def execute(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return str(a + b)

    return execute


@task
def sums() -> Task:
    """Ask for forty sums."""
    pairs = [(a, 3 * a + 4) for a in range(1, 41)]
    samples = [Sample(input=f"What is {a} plus {b}?", target=str(a + b)) for a, b in pairs]
    return Task(
        dataset=MemoryDataset(samples), solver=[use_tools(add()), generate()], scorer=includes()
    )
