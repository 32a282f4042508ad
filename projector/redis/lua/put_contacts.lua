-- Writes contacts, or replaces deleted ones by markers, each if its event is newer than what is stored. Their leads are
-- updated later, in batches (`resplice`). The index of a deleted contact remains, in case the contact is recreated. If
-- the organization is deleted, no index is written and no lead is returned: a replay writes them if it is recreated.
-- KEYS  for each contact: organization; then for each generation: contact, index of the contact's leads
-- ARGV  1 number of generations  2 '1' for overwrite_equal, else ''; then for each contact: the value without its first
--       lead, or the head of a marker
-- Returns a list: a string with a digit for each contact (STALE, WRITTEN or ORGANIZATION_DELETED); then, for some of
--         the leads that contain another summary (`pending_leads`), the contact's number (from 0) and the lead's short
--         id. A stale contact returns its leads as well, so that an interrupted fan-out is completed

-- Writes a newer value, and puts the first lead of the index into it. Returns the beginning of the new value.
local function put(value, name, leads, stored, deleted)
  local first = first_of(stored)
  if not is_live(value) then
    local moves = first and first ~= NO_LEAD and not deleted
    if moves then redis.call('ZADD', leads, score(first), string.sub(first, HASH_BYTES + 1)) end
    value = marker(stored, value)
    redis.call('SET', name, value)
    return value
  end
  local new_first = first or next_first(leads)
  redis.call('SET', name, string.sub(value, 1, FIRST_LEAD - 1) .. new_first .. string.sub(value, FIRST_LEAD))
  -- After the SET: when its memory is full, Redis refuses the first write of a script, but not the later ones.
  if new_first ~= first and new_first ~= NO_LEAD then redis.call('ZREM', leads, string.sub(new_first, HASH_BYTES + 1)) end
  return string.sub(value, 1, FIRST_LEAD - 1) .. new_first
end

return write_each(1, 2, function(a, k, pending, deleted)
  local stored = redis.call('GETRANGE', KEYS[k], 0, CONTACT_BODY - 1)
  local newer = is_newer(stored, ARGV[a], ARGV[2])
  if newer then stored = put(ARGV[a], KEYS[k], KEYS[k + 1], stored, deleted) end
  if not deleted then collect_pending(stored, KEYS[k + 1], pending) end
  return newer
end)
