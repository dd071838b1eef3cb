"""Benchmarks: each prints one JSON object as its last line, of nothing but what it measured."""

import argparse


def quick_asked(doc: str | None) -> bool:
    """Read the command line of a benchmark that knows `--quick` alone, told of in its docstring."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="less of everything; a minute")
    return bool(parser.parse_args().quick)
