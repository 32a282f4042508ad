// API keys: their form is checked here, and only their SHA-256 leaves the page. As `schemas/api_keys.py`.

const ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const PREFIX = "lv_live_";
const LENGTH = 66;
const CHECKSUM = 6;
const ORGANIZATION = 22;

export const looksLikeKey = (text) => text.includes(PREFIX);

// Returns what is wrong with the form of a key; "" if it has the form of one.
export function fault(key) {
  if (key.length !== LENGTH || !key.startsWith(PREFIX))
    return `an API key consists of ${PREFIX} and ${LENGTH - PREFIX.length} base62 characters`;
  if (![...key.slice(PREFIX.length)].every((character) => ALPHABET.includes(character)))
    return "an API key contains only base62 characters";
  const body = key.slice(0, -CHECKSUM);
  if (key.slice(-CHECKSUM) !== base62(crc32(body), CHECKSUM)) return "the checksum of the API key is wrong";
  let organization = 0n;
  for (const character of key.slice(PREFIX.length, PREFIX.length + ORGANIZATION))
    organization = organization * 62n + BigInt(ALPHABET.indexOf(character));
  return organization >> 128n ? "the organization part of the API key is out of range" : "";
}

// Returns the SHA-256 of a key in hex. Throws an Error where the browser cannot compute it.
export async function hash(key) {
  if (!globalThis.crypto?.subtle) {
    throw new Error(
      "This page came over plain HTTP from another machine, where browsers do not hash. Open it over HTTPS or " +
        "through an SSH tunnel as localhost, or run `leadview show key -`. The key was not sent.",
    );
  }
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(key));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

function base62(value, length) {
  let text = "";
  for (let rest = value; text.length < length; rest = Math.floor(rest / 62)) text = ALPHABET[rest % 62] + text;
  return text;
}

function crc32(text) {
  let crc = 0xffffffff;
  for (const byte of new TextEncoder().encode(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return (crc ^ 0xffffffff) >>> 0;
}
