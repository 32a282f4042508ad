-- Drop keys of a deleted organization: one slice of many.
-- KEYS  1 organization; then keys to drop
-- Returns how many were dropped, or -1 where the organization is not deleted (any more): then nothing is

if not organization_is_deleted(KEYS[1]) then return -1 end
local dropped = 0
for i = 2, #KEYS do dropped = dropped + redis.call('UNLINK', KEYS[i]) end
return dropped
