-- Leave a marker in place of a lead, where the event is newer than what is stored.
-- KEYS  1 organization; then for each generation: lead
-- ARGV  1 head  [2 again]
-- Returns STALE, WRITTEN or ORGANIZATION_DELETED; or, written too, the UUID of the contact that it belonged to

if organization_is_deleted(KEYS[1]) then return ORGANIZATION_DELETED end

local result = STALE
for i = 2, #KEYS do
  local stored = redis.call('GETRANGE', KEYS[i], 0, 191)
  if is_newer(stored, ARGV[1], ARGV[2]) then
    redis.call('SET', KEYS[i], marker(stored, ARGV[1]))
    local before = contact_of(stored)
    if before ~= '' then result = before elseif result == STALE then result = WRITTEN end
  end
end
return result
