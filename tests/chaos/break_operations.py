"""Faults of those who operate Leadview. Each begins on entry and ends on exit."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.chaos.world import PROJECTORS, World
from tests.harness import next_mapping

_FIELD = "leads.referrer_length"


@contextmanager
def rolled_back(world: World, _: Random) -> Iterator[None]:
    """A program with the next mapping runs beside the present one, its generation is promoted, then all goes back."""
    with world.operating:
        world.drop_all()
        deployed = world.new_projector("projector-next", next_mapping.PROGRAM)
        world.succeed("rebuild", "--promote", "--allow", _FIELD, program=next_mapping.PROGRAM)
        yield
        world.command("rollback")  # fails if Redis was emptied meanwhile, and filled by the newer program
        world.drop_all()
        # As docs/upgrading.md describes it: the second time, only the present program writes the new generation.
        for stopping in (deployed.stop, world.drop_all):
            world.succeed("rebuild", "--promote", "--force")
            world.drop_all()
            stopping()


@contextmanager
def dropped_asleep(world: World, random: Random) -> Iterator[None]:
    """A generation is dropped while a projector stands still in the middle of its batch, which then continues."""
    with world.operating:
        world.drop_all()
        world.succeed("rebuild", "--promote", "--force")
        with world.asleep(world.projectors[random.choice(PROJECTORS)]):
            world.succeed("drop")
            world.wrong += world.unexplained_keys()
            yield
