"""The script that replaces dead letters."""

import msgspec

from projector.upkeep import dead_letters
from schemas import names
from tests.harness.projection import Projection
from tests.service.test_lua_checkpoint import LETTER


async def test_only_stored_dead_letters_are_replaced(projection: Projection) -> None:
    """One that was dropped meanwhile does not come back."""
    projection.client.hset(names.DEAD_LETTERS, LETTER.field, msgspec.json.encode(LETTER))
    dropped = msgspec.structs.replace(LETTER, offset=LETTER.offset + 1)
    accepted = [letter.accept("known", 7) for letter in (LETTER, dropped)]
    assert await dead_letters.replace(projection.store, accepted) == 1
    assert await dead_letters.all_dead_letters(projection.store) == [accepted[0]]
    assert await dead_letters.replace(projection.store, []) == 0


async def test_many_are_replaced(projection: Projection) -> None:
    letters = [msgspec.structs.replace(LETTER, offset=offset) for offset in range(1005)]
    projection.client.hset(
        names.DEAD_LETTERS, mapping={letter.field: msgspec.json.encode(letter) for letter in letters}
    )
    accepted = [letter.accept("known", 7) for letter in letters]
    assert await dead_letters.replace(projection.store, accepted) == 1005
    assert await dead_letters.all_dead_letters(projection.store) == accepted


async def test_a_dead_letter_of_an_older_program_is_read(projection: Projection) -> None:
    older = {name: value for name, value in msgspec.to_builtins(LETTER).items() if not name.startswith(("acc", "note"))}
    projection.client.hset(names.DEAD_LETTERS, LETTER.field, msgspec.json.encode(older))
    assert await dead_letters.all_dead_letters(projection.store) == [LETTER]
