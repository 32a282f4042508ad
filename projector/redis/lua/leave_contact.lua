-- Removes a lead from the index of its former contact.
-- Requires  a lead that belongs to another contact, or to none
-- Uses  contact_index, index_repair
-- KEYS  leads...
--       for each generation: lead, contact, index of the contact's leads
-- ARGV  contact_id, lead_id
--       contact_id: a UUID. lead_id: as the index has it
-- Returns WRITTEN. It is safe to call at any time: a lead that belongs to the contact again is not removed. It creates
--         no key, so it leaves nothing behind if the organization is deleted

for i = FIRST.leads, #KEYS, 3 do
  if call('GETRANGE', KEYS[i], STORED_CONTACT_ID_AT, STORED_CONTACT_ID_LAST) ~= ARGV.contact_id then
    local contact = call('GETRANGE', KEYS[i + 1], 0, CONTACT_BODY - 1)
    index_remove(KEYS[i + 1], KEYS[i + 2], first_of(contact), ARGV.lead_id)
  end
end
return WRITTEN
