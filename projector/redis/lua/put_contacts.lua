-- Write contacts, or leave markers of deleted ones, each where its event is newer than what is stored. Their leads
-- follow in slices (`resplice`). The index of a deleted one stays: it says only which leads name it, should it be
-- created again.
-- KEYS  for each contact: organization; then for each generation: contact, the contact's leads
-- ARGV  1 number of generations  2 '1' for overwrite_equal, else ''; then for each contact: the value without its first lead, or
--       a marker's head
-- Returns a list: a digit for each contact (STALE, WRITTEN or ORGANIZATION_DELETED); then, for each of up to 100 leads
--         that show another summary, the contact's number (from 0) and the lead's id in the index: also when stale, so
--         that a fan-out that broke off goes on

-- Write a newer value, with the first lead of the index in its place. Returns the beginning of what is stored then.
local function put(value, name, leads, stored)
  local first = first_of(stored)
  if not is_live(value) then
    if first and first ~= NO_LEAD then redis.call('ZADD', leads, score(first), string.sub(first, HASH_BYTES + 1)) end
    value = marker(stored, value)
    redis.call('SET', name, value)
    return value
  end
  local new_first = first or next_first(leads)
  redis.call('SET', name, string.sub(value, 1, FIRST_LEAD - 1) .. new_first .. string.sub(value, FIRST_LEAD))
  -- After the SET, which Redis refuses when its memory is full: a script that has written anything may go on then.
  if new_first ~= first and new_first ~= NO_LEAD then redis.call('ZREM', leads, string.sub(new_first, HASH_BYTES + 1)) end
  return string.sub(value, 1, FIRST_LEAD - 1) .. new_first
end

return write_each(1, 2, function(a, k, pending)
  local stored = redis.call('GETRANGE', KEYS[k], 0, CONTACT_BODY - 1)
  local newer = is_newer(stored, ARGV[a], ARGV[2])
  if newer then stored = put(ARGV[a], KEYS[k], KEYS[k + 1], stored) end
  collect_pending(stored, KEYS[k + 1], pending)
  return newer
end)
