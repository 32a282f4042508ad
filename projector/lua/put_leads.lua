-- Write leads, each around the summary of its contact as it is now, or leave markers of deleted ones, each where its
-- event is newer than what is stored.
-- KEYS  for each lead: organization; then for each generation: lead, its contact, the contact's leads (a marker has no
--       contact: there both are the organization)
-- ARGV  1 number of generations  2 '1' for again, else ''; then for each lead: head and tag, body before the contact,
--       body after it, lead's id in the index, contact's UUID (a marker: its head, and four times '')
-- Returns a list: a digit for each lead (STALE, WRITTEN or ORGANIZATION_DELETED); then, for each other contact that a
--         written lead belonged to, the lead's number (from 0) and that contact's UUID (generations may differ)

local generations, again = tonumber(ARGV[1]), ARGV[2]

local function put(a, stored, lead, contact, leads)
  if not is_live(ARGV[a]) then
    redis.call('SET', lead, marker(stored, ARGV[a]))
    return
  end
  local value = redis.call('GET', contact) or ''
  local summary, mark = summary_of(value)
  local place = struct.pack('<I3I3', #ARGV[a + 1], #summary)
  redis.call('SET', lead, ARGV[a] .. mark .. place .. ARGV[a + 1] .. summary .. ARGV[a + 2])
  index_put(contact, leads, first_of(value), ARGV[a + 3], mark)
end

local codes, reply = {}, { '' }
local k = 1
for a = 3, #ARGV, 5 do
  local result, former = STALE, {}
  if organization_is_deleted(KEYS[k]) then
    result = ORGANIZATION_DELETED
  else
    for i = k + 1, k + 3 * generations, 3 do
      local stored = redis.call('GETRANGE', KEYS[i], 0, 191)
      if is_newer(stored, ARGV[a], again) then
        put(a, stored, KEYS[i], KEYS[i + 1], KEYS[i + 2])
        result = WRITTEN
        collect_former(stored, ARGV[a + 4], former)
      end
    end
  end
  codes[#codes + 1] = result
  add_all(reply, #codes - 1, former)
  k = k + 1 + 3 * generations
end
reply[1] = table.concat(codes)
return reply
