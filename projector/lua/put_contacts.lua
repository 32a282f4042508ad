-- Write contacts, or leave markers of deleted ones, each where its event is newer than what is stored. Their leads
-- follow in slices (`resplice`). The index of a deleted one stays: it says only which leads name it, should it be
-- created again.
-- KEYS  for each contact: organization; then for each generation: contact, the contact's leads
-- ARGV  1 number of generations  2 '1' for again, else ''; then for each contact: the value without its first lead, or
--       a marker's head
-- Returns a list: a digit for each contact (STALE, WRITTEN or ORGANIZATION_DELETED); then, for each of up to 100 leads
--         that show another summary, the contact's number (from 0) and the lead's id in the index: also when stale, so
--         that a fan-out that broke off goes on

local generations, again = tonumber(ARGV[1]), ARGV[2]

-- Write a newer value, with the first lead of the index in its place. Returns the beginning of what is stored then.
local function put(value, name, leads, stored)
  local first = first_of(stored)
  if not is_live(value) then
    if first and first ~= NO_LEAD then redis.call('ZADD', leads, score(first), string.sub(first, 7)) end
    value = marker(stored, value)
    redis.call('SET', name, value)
    return value
  end
  local new_first = first or next_first(leads)
  redis.call('SET', name, string.sub(value, 1, 37) .. new_first .. string.sub(value, 38))
  -- After the SET, which Redis refuses when its memory is full: a script that has written anything may go on then.
  if new_first ~= first and new_first ~= NO_LEAD then redis.call('ZREM', leads, string.sub(new_first, 7)) end
  return string.sub(value, 1, 37) .. new_first
end

local codes, reply = {}, { '' }
local k = 1
for a = 3, #ARGV do
  local result, pending = STALE, {}
  if organization_is_deleted(KEYS[k]) then
    result = ORGANIZATION_DELETED
  else
    for i = k + 1, k + 2 * generations, 2 do
      local stored = redis.call('GETRANGE', KEYS[i], 0, CONTACT_BODY - 1)
      if is_newer(stored, ARGV[a], again) then
        stored = put(ARGV[a], KEYS[i], KEYS[i + 1], stored)
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
