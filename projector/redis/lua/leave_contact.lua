-- Take a lead out of the index of a contact that it belongs to no more.
-- KEYS  for each generation: lead, the contact, the contact's leads
-- ARGV  1 contact's UUID  2 lead's id in the index
-- Returns 1. Safe at any time: a lead that has come back in between stays

for i = 1, #KEYS, 3 do
  if contact_of(redis.call('GETRANGE', KEYS[i], 0, STORED_CONTACT_ID_END - 1)) ~= ARGV[1] then
    local contact = redis.call('GETRANGE', KEYS[i + 1], 0, CONTACT_BODY - 1)
    index_remove(KEYS[i + 1], KEYS[i + 2], first_of(contact), ARGV[2])
  end
end
return WRITTEN
