-- Deletes a batch of the keys of a deleted organization.
-- Requires  the deleted organization; a name in a generation has its identity
-- KEYS  organization, erased...
-- Returns how many keys existed, or -1 if the organization is not deleted (any more) and nothing was done

if not organization_is_deleted(KEYS.organization) then return -1 end
local dropped = 0
for i = FIRST.erased, #KEYS do dropped = dropped + call('UNLINK', KEYS[i]) end
return dropped
