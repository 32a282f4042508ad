-- Writes leads, each with the present summary of its contact, or replaces deleted ones by markers, each if its event is
-- newer than what is stored.
-- KEYS  for each lead: organization; then for each generation: lead, its contact, index of the contact's leads (a
--       marker has no contact: both are the organization)
-- ARGV  1 number of generations  2 '1' for overwrite_equal, else ''; then for each lead: head and body hash, body
--       before the contact summary, body after it (for a marker: its head, '' and '')
-- Returns a list: a string with a digit for each lead (STALE, WRITTEN or ORGANIZATION_DELETED); then, for each former
--         contact of a written lead, the lead's number (from 0) and the UUID of that contact (generations may differ)

local function put(a, stored, lead, contact, leads)
  if not is_live(ARGV[a]) then
    redis.call('SET', lead, marker(stored, ARGV[a]))
    return
  end
  local value = redis.call('GET', contact) or ''
  local summary, summary_hash = summary_of(value)
  local place = struct.pack('<I3I3', #ARGV[a + 1], #summary)
  redis.call('SET', lead, ARGV[a] .. summary_hash .. place .. ARGV[a + 1] .. summary .. ARGV[a + 2])
  index_put(contact, leads, first_of(value), string.sub(lead, -SHORT_ID), summary_hash)
end

return write_each(3, 3, function(a, k, former)
  local stored = redis.call('GETRANGE', KEYS[k], 0, STORED_CONTACT_ID_END - 1)
  if not is_newer(stored, ARGV[a], ARGV[2]) then return false end
  put(a, stored, KEYS[k], KEYS[k + 1], KEYS[k + 2])
  collect_former(stored, ARGV[a + 1], former)
  return true
end)
