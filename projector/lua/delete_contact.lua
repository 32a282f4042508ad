-- Leave a marker in place of a contact, where the event is newer than what is stored. Its leads follow (`resplice`);
-- their index stays: it says only which leads name this contact, should it be created again.
-- KEYS  1 organization; then for each generation: contact, the contact's leads
-- ARGV  1 head  [2 again]
-- Returns as put_contact does

if organization_is_deleted(KEYS[1]) then return ORGANIZATION_DELETED end

local result, pending = STALE, {}
for i = 2, #KEYS, 2 do
  local stored = redis.call('GETRANGE', KEYS[i], 0, 33)
  if is_newer(stored, ARGV[1], ARGV[2]) then
    stored, result = marker(stored, ARGV[1]), WRITTEN
    redis.call('SET', KEYS[i], stored)
  end
  collect_pending(stored, KEYS[i + 1], pending)
end
if #pending == 0 then return result end
return { result, unpack(pending) }
