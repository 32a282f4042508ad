-- Reads which leads of a contact contain another summary than its present one.
-- KEYS  for each generation: contact, index of the contact's leads
-- Returns the short ids of some of these leads (per generation the first lead, and up to 100 with a lower and 100 with
--         a higher hash); an empty list if all leads are up to date

local pending = {}
for i = 1, #KEYS, 2 do
  collect_pending(redis.call('GETRANGE', KEYS[i], 0, CONTACT_BODY - 1), KEYS[i + 1], pending)
end
return { unpack(pending) }
