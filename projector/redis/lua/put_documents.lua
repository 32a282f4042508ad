-- Writes documents of a resource without links, or replaces deleted ones by markers, each if its event is newer than
-- what is stored.
-- Uses  write_each
-- KEYS  the documents: for each its name in each generation; then the organization of each document
-- ARGV  1 number of generations  2 '1' for overwrite_equal, else ''  3 '1' if KEYS may name a document twice, else '';
--       then for each document: the value, or the head of a marker
-- Returns a list of one string: a digit for each document (STALE, WRITTEN or ORGANIZATION_DELETED)

return write_each(#KEYS - (#ARGV - 3), STORED_HEAD_LAST, 0, function(value, stored)
  return #value > HEAD and value or marker(stored, value)
end)
