"""Dead letters in Redis: which ones are meant, and the script that replaces them."""

import msgspec
import pytest

from projector.dead_letter import DeadLetter
from projector.errors import Refused
from projector.upkeep import dead_letters
from schemas import names
from tests.harness import crm
from tests.harness.projection import Projection
from tests.service.test_lua_checkpoint import LETTER


async def test_only_stored_dead_letters_are_replaced(projection: Projection) -> None:
    """One that was dropped meanwhile does not come back, however many there are."""
    letters = [msgspec.structs.replace(LETTER, offset=offset) for offset in range(250)]
    await dead_letters.park(projection.store, letters)
    await dead_letters.delete(projection.store, letters[-1:])
    accepted = [letter.accept("known", 7) for letter in letters]
    assert await dead_letters.replace(projection.store, accepted) == 249
    assert await dead_letters.all_dead_letters(projection.store) == accepted[:-1]
    assert await dead_letters.replace(projection.store, []) == 0


async def test_a_dead_letter_of_an_older_program_is_read(projection: Projection) -> None:
    older = {name: value for name, value in msgspec.to_builtins(LETTER).items() if not name.startswith(("acc", "note"))}
    projection.client.hset(names.DEAD_LETTERS, LETTER.field, msgspec.json.encode(older))
    assert await dead_letters.all_dead_letters(projection.store) == [LETTER]


async def test_which_dead_letters_are_meant(projection: Projection) -> None:
    """By their places, or by what all of them have in common."""
    letters = [msgspec.structs.replace(LETTER, offset=offset) for offset in range(4)]
    letters.append(msgspec.structs.replace(LETTER, topic="crm.other", key=f"{crm.OTHER_ORGANIZATION}:{crm.LEAD}"))
    projection.client.hset(
        names.DEAD_LETTERS, mapping={letter.field: msgspec.json.encode(letter) for letter in letters}
    )

    async def chosen(*words: str, **filtered: str) -> list[DeadLetter]:
        return await dead_letters.choose(projection.store, words, dead_letters.Filter(**filtered))

    where, other = f"{LETTER.topic}:{LETTER.partition}", letters[-1]
    assert await chosen() == letters
    assert await chosen(f"{where}:1-2") == letters[1:3]
    assert await chosen(f"{where}:3", f"{where}:0-1") == [*letters[:2], letters[3]]
    assert await chosen(topic=LETTER.topic) == letters[:4]
    assert await chosen(organization=crm.OTHER_ORGANIZATION) == [other]
    assert await chosen(reason=LETTER.reason[2:-2]) == letters
    assert await chosen(reason="nobody says this") == []
    for unknown in (f"{where}:4", f"{LETTER.topic}:7:0", "nonsense"):
        with pytest.raises(Refused, match=f"There is no dead letter {unknown}"):
            await chosen(f"{where}:0", unknown)
    with pytest.raises(Refused, match="No dead letter matches"):
        await dead_letters.matching(projection.store, projection.settings, dead_letters.Filter(reason="nobody"))
