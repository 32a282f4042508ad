-- Writes contacts, or replaces deleted ones by markers, each if its event is newer than what is stored. Their leads are
-- updated later, in batches (`resplice`). The index of a deleted contact remains, in case the contact is recreated. If
-- the organization is deleted, no index is written and no lead is returned: a replay writes them if it is recreated.
-- Requires  a newer event than the one that is stored
-- Uses  contact_index, index_repair, order
-- Within  write_each
-- KEYS  documents..., organizations..., indexes...
--       documents: for each contact its name in each generation. organizations: that of each contact. indexes: those of
--       their leads, in the order of `documents`
-- ARGV  generations, overwrite_equal, repeated, prefixes, bodies...
--       generations: how many. overwrite_equal: '1' or ''. repeated: '1' if a contact may be there twice, else ''.
--       prefixes: for each contact, the value before its first lead (for a marker: head and zeros). bodies: '' for a
--       marker
-- Returns a list: a string with a digit for each contact (that of `write_each`); then, for some of
--         the leads that contain another summary (`pending_leads`), the contact's number (from 0) and the lead's short
--         id. A stale contact returns its leads as well, so that an interrupted fan-out is completed

local width, last, linked, checks = PUT_CONTACT_PREFIX, FIRST_LEAD_LAST, 0, true
local moved = {} -- for an index, the lead that becomes the first one

--- write
-- The first lead of the index comes into a newer value.
local first, leads, body = first_of(stored), KEYS[documents + count + k], ARGV[part]
if body == '' then
  local was_deleted = organization and not is_live(organization)
  if moved[leads] then
    moved[leads] = nil -- it is still in the set
  elseif first and first ~= NO_LEAD and not was_deleted then
    call('ZADD', leads, score(first), sub(first, HASH_BYTES + 1))
  end
  value = marker(stored, sub(prefixes, at, at + HEAD - 1))
else
  if not first then
    first = next_first(leads)
    if first ~= NO_LEAD then moved[leads] = sub(first, HASH_BYTES + 1) end
  end
  value = sub(prefixes, at, at + PUT_CONTACT_PREFIX - 1) .. first .. body
end

--- check
if not is_deleted then found = collect_pending(stored, KEYS[documents + count + k], found) end

--- finish
-- After the contacts: when its memory is full, Redis refuses the first write of a script, but not the later ones.
for leads, id in pairs(moved) do call('ZREM', leads, id) end
