-- Writes documents of a resource without links, or replaces deleted ones by markers, each if its event is newer than
-- what is stored.
-- KEYS  for each document: organization; then for each generation: document
-- ARGV  1 number of generations  2 '1' for overwrite_equal, else ''; then for each document: the value, or the head of
--       a marker
-- Returns a list of one string: a digit for each document (STALE, WRITTEN or ORGANIZATION_DELETED)

return write_each(1, 1, function(a, k)
  local stored = redis.call('GETRANGE', KEYS[k], 0, HEAD - 1)
  if not is_newer(stored, ARGV[a], ARGV[2]) then return false end
  redis.call('SET', KEYS[k], is_live(ARGV[a]) and ARGV[a] or marker(stored, ARGV[a]))
  return true
end)
