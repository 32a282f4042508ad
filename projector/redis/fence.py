"""Keeps a batch from being continued over a connection that was opened after the batch had begun.

A program that stood still (SIGSTOP, a suspended machine) may wake up in the middle of a batch, long after the
generation that it writes was dropped. Therefore `drop` closes the connections of each program that has not acknowledged
the change (`projector/ledger/generations.py`), and a connection that is opened later is used for a batch only after the
control record was read once more.
"""

from typing import Protocol


class Fence(Protocol):
    """What a batch knows about the connections it may use."""

    opened: int
    """How many connections the program had opened when the batch began. Later ones have a higher number."""
    confirmed: set[int]
    """The numbers of the later connections that were confirmed: `drop` will find them, as it finds the earlier ones."""

    async def confirm(self) -> None:
        """Raises Unavailable if the control record is no longer the one that the batch began with."""
