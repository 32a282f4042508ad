-- Deletes a batch of the keys of a deleted organization.
-- Requires  the deleted organization; a name in a generation has its identity
-- KEYS  1 organization; then the keys to delete
-- Returns how many keys existed, or -1 if the organization is not deleted (any more) and nothing was done

if not organization_is_deleted(KEYS[1]) then return -1 end
local dropped = 0
for i = 2, #KEYS do dropped = dropped + call('UNLINK', KEYS[i]) end
return dropped
