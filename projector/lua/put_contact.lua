-- Write a contact where its event is newer than what is stored. Its leads follow in slices (`resplice`).
-- KEYS  1 organization; then for each generation: contact, the contact's leads
-- ARGV  1 the whole value  [2 again]
-- Returns STALE, WRITTEN or ORGANIZATION_DELETED; or a list of that and the ids of up to 100 leads that show another
--         summary (also when stale, so that a fan-out that broke off goes on)

if organization_is_deleted(KEYS[1]) then return ORGANIZATION_DELETED end

local result, pending = STALE, {}
for i = 2, #KEYS, 2 do
  local stored = redis.call('GETRANGE', KEYS[i], 0, 33)
  if is_newer(stored, ARGV[1], ARGV[2]) then
    redis.call('SET', KEYS[i], ARGV[1])
    stored, result = ARGV[1], WRITTEN
  end
  collect_pending(stored, KEYS[i + 1], pending)
end
if #pending == 0 then return result end
return { result, unpack(pending) }
