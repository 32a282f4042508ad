"""The descriptions of the fields of a Struct: the text below each field in the source."""

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from msgspec import Struct


def descriptions(struct: type[Struct]) -> dict[str, str]:
    """Returns the description of each field that has one, by name. Fields of base classes are included."""
    found: dict[str, str] = {}
    for each in reversed(struct.__mro__):
        module = sys.modules.get(each.__module__)
        if module and issubclass(each, Struct):
            found |= _classes(inspect.getsource(module)).get(each.__name__, {})
    return {name: found[name] for name in struct.__struct_encode_fields__ if name in found}


@cache
def _classes(source: str) -> dict[str, dict[str, str]]:
    """Returns the texts below the fields of each class in a module."""
    classes = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    return {node.name: _fields(node.body) for node in classes}


def _fields(body: list[ast.stmt]) -> dict[str, str]:
    found = {}
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(description))):
                found[name] = " ".join(description.split())
    return found
