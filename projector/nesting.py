"""How deep JSON is nested, found in its bytes.

A decoder would need the stack for it: each version of Python, and each library, ends at another depth, so that the same
record would be good here and bad there. Nothing is decoded before this was asked.
"""

import re

_RUN = re.compile(rb"\[+|\]+")
_OTHERS = bytes(code for code in range(256) if code not in b'[]{}"')
_FLATTENED = 3
"""How often the innermost containers are left out at once, which takes less time than to count them one by one."""


def is_nested_deeper(json: bytes, levels: int) -> bool:
    """Returns whether objects and arrays are nested deeper than this.

    What is no JSON has an answer, too. It is right for what a decoder reads before it finds the error.
    """
    return has_more_openers(json, levels) and _is_deeper(json, levels)


def has_more_openers(json: bytes, levels: int) -> bool:
    """Returns whether more objects and arrays begin here than this; otherwise they cannot be nested deeper. Brackets in
    texts count as well.

    `replace` passes over many bytes in a step, which `count` does not, and no step is in Python.
    """
    return len(json) - len(json.replace(b"[", b"", levels + 1).replace(b"{", b"", levels + 1)) > levels


def _is_deeper(json: bytes, levels: int) -> bool:
    """Returns the same, in a few passes over all bytes."""
    marks = json.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
    # Two quotes with no bracket between them change nothing for the brackets behind them.
    outside = b"".join(marks.replace(b'""', b"").split(b'"')[::2])
    brackets = outside.replace(b"{", b"[").replace(b"}", b"]")
    for _ in range(_FLATTENED):
        brackets = brackets.replace(b"[]", b"")
        levels -= 1
    for run in _RUN.finditer(brackets):
        levels -= run.end() - run.start() if run[0].startswith(b"[") else run.start() - run.end()
        if levels < 0:
            return True
    return False
