"""The table of limits in docs/limits.md, derived from `schemas.limits` and the text below each limit there."""

import ast
import inspect
from itertools import pairwise

from schemas import limits


def table() -> str:
    """Returns the table in Markdown."""
    rows = ["| what | limit |", "|---|---|"]
    for assignment, text in pairwise(ast.parse(inspect.getsource(limits)).body):
        match assignment, text:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(meaning))):
                unit = " bytes" if name.endswith("_BYTES") else ""
                rows.append(f"| {' '.join(meaning.split())} | {getattr(limits, name):,}{unit} |")
    return "\n".join(rows)
