-- Some of the leads that show another summary of a contact than its present one.
-- KEYS  for each generation: contact, the contact's leads
-- Returns the ids of up to 100 leads a generation and side; none when all are up to date

local pending = {}
for i = 1, #KEYS, 2 do
  collect_pending(redis.call('GETRANGE', KEYS[i], 0, CONTACT_BODY - 1), KEYS[i + 1], pending)
end
return { unpack(pending) }
