-- Write contacts, or leave markers of deleted ones, each where its event is newer than what is stored. Their leads
-- follow in slices (`resplice`). The index of a deleted one stays: it says only which leads name it, should it be
-- created again.
-- KEYS  for each contact: organization; then for each generation: contact, the contact's leads
-- ARGV  1 number of generations  2 '1' for again, else ''; then for each contact: the whole value, or a marker's head
-- Returns a list: a digit for each contact (STALE, WRITTEN or ORGANIZATION_DELETED); then, for each of up to 100 leads
--         that show another summary, the contact's number (from 0) and the lead's id in the index: also when stale, so
--         that a fan-out that broke off goes on

local generations, again = tonumber(ARGV[1]), ARGV[2]
local codes, reply = {}, { '' }
local k = 1
for a = 3, #ARGV do
  local result, pending = STALE, {}
  if organization_is_deleted(KEYS[k]) then
    result = ORGANIZATION_DELETED
  else
    for i = k + 1, k + 2 * generations, 2 do
      local stored = redis.call('GETRANGE', KEYS[i], 0, 33)
      if is_newer(stored, ARGV[a], again) then
        stored = is_live(ARGV[a]) and ARGV[a] or marker(stored, ARGV[a])
        redis.call('SET', KEYS[i], stored)
        result = WRITTEN
      end
      collect_pending(stored, KEYS[i + 1], pending)
    end
  end
  codes[#codes + 1] = result
  add_all(reply, #codes - 1, pending)
  k = k + 1 + 2 * generations
end
reply[1] = table.concat(codes)
return reply
