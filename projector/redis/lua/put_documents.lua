-- Writes documents of a resource without links, or replaces deleted ones by markers, each if its event is newer than
-- what is stored.
-- Requires  a newer event than the one that is stored
-- Uses  write_each
-- KEYS  the documents: for each its name in each generation; then the organization of each document
-- ARGV  1 number of generations  2 '1' for overwrite_equal, else ''  3 '1' if KEYS may name a document twice, else ''
--       4 for each document: the value before its body (for a marker: head and zeros); then for each document: its body
--       ('' for a marker)
-- Returns a list of one string: a digit for each document (STALE, WRITTEN or ORGANIZATION_DELETED)

return write_each(PLAIN_BODY, 1, STORED_HEAD_LAST, 0, function(at, part, stored)
  if ARGV[part] == '' then return marker(stored, sub(ARGV[4], at, at + HEAD - 1)) end
  return sub(ARGV[4], at, at + PLAIN_BODY - 1) .. ARGV[part]
end)
