"""The graph of all states and steps of a model, as TLC writes it."""

import re
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Any, NamedTuple

from tests.model import tlc

_NODE = re.compile(r'^(-?\d+) \[label="(.*?)"(?:,style = filled)?\];?$')
_EDGE = re.compile(r'^(-?\d+) -> (-?\d+) \[label="(\w+)"')
_TOKEN = re.compile(r'\s*(<<|>>|\|->|:>|@@|[\[\](){},]|"[^"]*"|-?\d+|\w+)')

State = dict[str, Any]


class Step(NamedTuple):
    """A step of a model: the name of its action, and the state that it leads to."""

    action: str
    to: int


class Graph(NamedTuple):
    """`steps` are those that each state has. TLC names states by numbers."""

    first: int
    states: dict[int, State]
    steps: dict[int, list[Step]]


@cache
def of_configuration(name: str, **constants: int) -> Graph:
    """Returns the graph of a configuration of `docs/model`, with these constants. Raises JarsMissing, TlcFailed."""
    states: dict[int, State] = {}
    steps: dict[int, list[Step]] = {}
    for line in tlc.dump(tlc.MODELS / f"{name}.cfg", **constants).splitlines():
        if edge := _EDGE.match(line):
            steps.setdefault(int(edge[1]), []).append(Step(edge[3], int(edge[2])))
        elif node := _NODE.match(line):
            states[int(node[1])] = state(node[2].replace("\\\\", "\\").replace("\\n", "\n").replace('\\"', '"'))
    return Graph(next(iter(states)), states, steps)


def state(text: str) -> State:
    """Returns the variables of a state in TLC's notation. A sequence is a tuple, and a function is a dictionary."""
    variables = {}
    for line in text.removeprefix("/\\ ").split("\n/\\ "):
        name, _, value = line.partition(" = ")
        variables[name] = _parsed(value)
    return variables


@cache
def _parsed(text: str) -> Any:
    return _value(_TOKEN.findall(text)[::-1])


def _value(tokens: list[str]) -> Any:
    """Takes the value that comes next. The tokens are in reverse."""
    token = tokens.pop()
    match token:
        case "<<":
            return tuple(_items(tokens, ">>"))
        case "{":
            return frozenset(_items(tokens, "}"))
        case "[" | "(":
            pairs = list(_items(tokens, "]" if token == "[" else ")"))
            return dict(zip(pairs[::2], pairs[1::2], strict=True))
        case "TRUE" | "FALSE":
            return token == "TRUE"
    return int(token) if token.lstrip("-").isdigit() else token.strip('"')


def _items(tokens: list[str], end: str) -> Iterator[Any]:
    """Yields the values up to the `end`; of a record or a function, names and values in turn."""
    while tokens[-1] != end:
        if tokens[-1] in (",", "|->", ":>", "@@"):
            tokens.pop()
        else:
            yield _value(tokens)
    tokens.pop()


def walks(graph: Graph, case: Callable[[State, Step, State], Hashable | None]) -> Iterator[list[Step]]:
    """Yields walks from the first state, which take a step of each case at least once. No walk takes a step whose case
    is None.
    """
    cases = {
        (state, step): name
        for state, steps in graph.steps.items()
        for step in steps
        if (name := case(graph.states[state], step, graph.states[step.to])) is not None
    }
    ways: dict[int, tuple[int, Step] | None] = {graph.first: None}
    for state in (order := [graph.first]):
        for step in graph.steps.get(state, ()):
            if (state, step) in cases and step.to not in ways:
                ways[step.to] = state, step
                order.append(step.to)
    left = {cases[state, step] for state in order for step in graph.steps.get(state, ()) if (state, step) in cases}

    def new(state: int) -> Iterator[Step]:
        return (step for step in graph.steps.get(state, ()) if cases.get((state, step)) in left)

    for state in reversed(order):  # the longest ways first: on them lie many others
        while first := next(new(state), None):
            walk = [first]
            before = state
            while way := ways[before]:
                before, _ = way
                walk.insert(0, way[1])
            for step in walk:
                left.discard(cases[before, step])
                before = step.to
            while further := next(new(before), None):
                left.discard(cases[before, further])
                walk.append(further)
                before = further.to
            yield walk
