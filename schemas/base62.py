"""Fixed-width base62 (`0-9A-Za-z`, in that order), the alphabet of API keys and of hash tags in Redis."""

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VALUES = {character: value for value, character in enumerate(ALPHABET)}


def encode(number: int, width: int) -> str:
    """Returns `number` in exactly `width` characters, left-padded with `0`. Raises OverflowError if it does not fit."""
    characters = []
    for _ in range(width):
        number, digit = divmod(number, 62)
        characters.append(ALPHABET[digit])
    if number:
        raise OverflowError(f"the number does not fit into {width} base62 characters")
    return "".join(reversed(characters))


def decode(text: str) -> int:
    """Returns the number that `text` encodes. Raises ValueError if a character is not in the alphabet."""
    number = 0
    for character in text:
        try:
            number = number * 62 + _VALUES[character]
        except KeyError:
            raise ValueError("not base62: only 0-9, A-Z and a-z are allowed") from None
    return number
