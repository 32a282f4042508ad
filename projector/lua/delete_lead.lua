-- Leave a marker in place of a lead, where the event is newer than what is stored.
-- KEYS  1 organization; then for each generation: lead
-- ARGV  1 head  [2 again]
-- Returns as put_lead does

if organization_is_deleted(KEYS[1]) then return ORGANIZATION_DELETED end

local result, former = STALE, {}
for i = 2, #KEYS do
  local stored = redis.call('GETRANGE', KEYS[i], 0, 191)
  if is_newer(stored, ARGV[1], ARGV[2]) then
    redis.call('SET', KEYS[i], marker(stored, ARGV[1]))
    result = WRITTEN
    collect_former(stored, '', former)
  end
end
if #former == 0 then return result end
return former
