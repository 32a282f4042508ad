-- Reads which leads of a contact contain another summary than its present one.
-- Requires  nothing: it only reads
-- Uses  contact_index, index_repair
-- KEYS  organization, contacts...
--       contacts: for each generation, the contact and the index of its leads
-- Returns the short ids of some of these leads (per generation the first lead, and up to 100 with a lower and 100 with
--         a higher hash); an empty list if all leads are up to date, or if the organization is deleted: then no lead
--         is updated any more

local pending = {}
if organization_is_deleted(KEYS.organization) then return pending end
for i = FIRST.contacts, #KEYS, 2 do
  collect_pending(call('GETRANGE', KEYS[i], 0, CONTACT_BODY - 1), KEYS[i + 1], pending)
end
return { unpack(pending) }
