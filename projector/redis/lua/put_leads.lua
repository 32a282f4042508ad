-- Writes leads, each with the present summary of its contact, or replaces deleted ones by markers, each if its event is
-- newer than what is stored.
-- Requires  a newer event than the one that is stored
-- Uses  contact_index, order
-- Within  write_each
-- KEYS  documents..., organizations..., contacts..., indexes...
--       documents: for each lead its name in each generation. organizations: that of each lead. contacts, indexes: the
--       contacts, and the indexes of their leads, in the order of `documents` (a marker has no contact: both are the
--       organization)
-- ARGV  generations, overwrite_equal, repeated, prefixes, bodies..., ends...
--       generations: how many. overwrite_equal: '1' or ''. repeated: '1' if a lead or a contact may be there twice,
--       else ''. prefixes: for each lead, head and body hash (for a marker: head and zeros). bodies, ends: for each
--       lead, its body before the contact summary and after it (for a marker: '')
-- Returns a list: a string with a digit for each lead (that of `write_each`); then, for each former
--         contact of a written lead, the lead's number (from 0) and the UUID of that contact (generations may differ)

-- `write_each` sets what the section `write` uses: stored, prefixes, at, part, k, name, link, organization, found.
local width, last, linked, checks = PUT_LEAD_PREFIX, STORED_CONTACT_ID_LAST, 1, false
local firsts = ARGV.repeated == '1' and {} -- the first leads of contacts that this call has changed

--- write
-- A marker is shorter than a lead: it has no former contact.
local former, before = sub(stored, STORED_CONTACT_ID, STORED_CONTACT_ID_END), ARGV[part]
local stays = former ~= '' and sub(before, LEAD_CONTACT_ID, LEAD_CONTACT_ID_END) == former
if former ~= '' and not (stays or found and found[1] == former) then
  found = found or {}
  found[#found + 1] = former
end
if before == '' then
  value = marker(stored, sub(prefixes, at, at + HEAD - 1))
else
  local summary_hash, first, id, fields, closing = read_contact(link or '')
  -- The index already has this lead with this hash if the stored document was written together with that hash. That is
  -- not certain while values are repaired, nor while a recreated organization has not had all of its records applied
  -- again: its erasure may have deleted the index.
  if not stays or sub(stored, SUMMARY_HASH, SUMMARY_HASH_END) ~= summary_hash or overwrite_equal
    or not organization or byte(organization, JOB_DUE) ~= JOB_NONE_BYTE then
    local contact = KEYS[documents + count + k]
    first = firsts and firsts[contact] or first
    first = index_put(contact, KEYS[documents * 2 + count + k], first, sub(name, -SHORT_ID), summary_hash)
    if firsts then firsts[contact] = first end
  end
  if id == '' then before = opened(before, true) end
  value = sub(prefixes, at, at + PUT_LEAD_PREFIX - 1) .. summary_hash
    .. pack('<I3I3', #before, #id + #fields + #closing) .. before .. id .. fields .. closing .. ARGV[part + count]
end
