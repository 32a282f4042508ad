-- Writes documents of a resource without links, or replaces deleted ones by markers, each if its event is newer than
-- what is stored.
-- Requires  a newer event than the one that is stored
-- Uses  order
-- Within  write_each
-- KEYS  documents..., organizations...
--       documents: for each document its name in each generation. organizations: that of each document
-- ARGV  generations, overwrite_equal, repeated, prefixes, bodies...
--       generations: how many. overwrite_equal: '1' or ''. repeated: '1' if a document may be there twice, else ''.
--       prefixes: for each document, the value before its body (for a marker: head and zeros). bodies: '' for a marker
-- Returns a list of one string: a digit for each document (that of `write_each`)

local width, last, linked, checks = PLAIN_BODY, BODY_HASH_LAST, 0, false

--- write
if ARGV[part] == '' then
  value = marker(stored, sub(prefixes, at, at + HEAD - 1))
else
  value = sub(prefixes, at, at + PLAIN_BODY - 1) .. ARGV[part]
end
