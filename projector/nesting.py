"""How deep JSON is nested, found in its bytes.

A decoder would need the stack for it: each version of Python, and each library, ends at another depth, so that the same
record would be good here and bad there. Nothing is decoded before this was asked.
"""

import re

_OPENERS = b"[", b"{"
_RUN = re.compile(rb"\[+|\]+")
_OTHERS = bytes(code for code in range(256) if code not in b'[]{}"')
_FLATTENED = 3
"""How often the innermost containers are left out at once, which takes less time than to count them one by one."""


def is_nested_deeper(json: bytes, levels: int) -> bool:
    """Returns whether objects and arrays are nested deeper than this.

    What is no JSON has an answer, too. It is right for what a decoder reads before it finds the error.
    """
    return not _has_few_openers(json, levels) and _is_deeper(json, levels)


def _has_few_openers(json: bytes, levels: int) -> bool:
    """Returns whether there are at most this many objects and arrays. Brackets in texts count as well.

    `find` takes a step for many bytes, and `count` one for each. Behind the innermost opener, each level is closed.
    """
    end, count = len(json) - levels, 0
    for opener in _OPENERS:
        place = json.find(opener, 0, end)
        while place >= 0:
            count += 1
            if count > levels:
                return False
            place = json.find(opener, place + 1, end)
    return True


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
