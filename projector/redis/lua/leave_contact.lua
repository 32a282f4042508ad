-- Removes a lead from the index of its former contact.
-- Requires  a lead that belongs to another contact, or to none
-- Uses  contact_index, index_repair
-- KEYS  for each generation: lead, contact, index of the contact's leads
-- ARGV  1 contact's UUID  2 lead's id in the index
-- Returns 1. It is safe to call at any time: a lead that belongs to the contact again is not removed. It creates no
--         key, so it leaves nothing behind if the organization is deleted

for i = 1, #KEYS, 3 do
  if contact_of(call('GETRANGE', KEYS[i], 0, STORED_CONTACT_ID_END - 1)) ~= ARGV[1] then
    local contact = call('GETRANGE', KEYS[i + 1], 0, CONTACT_BODY - 1)
    index_remove(KEYS[i + 1], KEYS[i + 2], first_of(contact), ARGV[2])
  end
end
return WRITTEN
