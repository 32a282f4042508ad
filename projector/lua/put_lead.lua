-- Write a lead, around the summary of its contact as it is now, where its event is newer than what is stored.
-- KEYS  1 organization; then for each generation: lead, its contact, the contact's leads
-- ARGV  1 head and tag  2 body before the contact  3 body after it  4 lead's id in the index  5 contact's UUID  [6 again]
-- Returns STALE, WRITTEN or ORGANIZATION_DELETED; or, written too, a list of the UUIDs of other contacts that it
--         belonged to (generations may differ)

if organization_is_deleted(KEYS[1]) then return ORGANIZATION_DELETED end

local result, former = STALE, {}
for i = 2, #KEYS, 3 do
  local lead, contact, leads = KEYS[i], KEYS[i + 1], KEYS[i + 2]
  local stored = redis.call('GETRANGE', lead, 0, 191)
  if is_newer(stored, ARGV[1], ARGV[6]) then
    local summary, mark = summary_of(contact)
    local place = struct.pack('<I3I3', #ARGV[2], #summary)
    redis.call('SET', lead, ARGV[1] .. mark .. place .. ARGV[2] .. summary .. ARGV[3])
    redis.call('ZADD', leads, score(mark), ARGV[4])
    result = WRITTEN
    collect_former(stored, ARGV[5], former)
  end
end
if #former == 0 then return result end
return former
