-- Writes leads, each with the present summary of its contact, or replaces deleted ones by markers, each if its event is
-- newer than what is stored.
-- Requires  a newer event than the one that is stored
-- Uses  contact_index, order, write_each
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

local KEYS, ARGV = KEYS, ARGV -- a local variable is found faster
local prefixes, repair = ARGV.prefixes, ARGV.overwrite_equal == '1'
local count = #prefixes / PUT_LEAD_PREFIX
local documents = count * ARGV.generations
local contacts, indexes = #KEYS - 2 * documents, #KEYS - documents
local firsts = ARGV.repeated == '1' and {} -- the first leads of contacts that this call has changed

local function leaves(contact, found)
  if contact == '' or (found and found[1] == contact) then return found end
  found = found or {}
  found[#found + 1] = contact
  return found
end

local function write(at, part, stored, k, found, organization, contact)
  local former, before = stored ~= '' and contact_of(stored) or '', ARGV[part]
  if before == '' then return marker(stored, sub(prefixes, at, at + HEAD - 1)), leaves(former, found) end
  local summary_hash, first, id, fields, last = read_contact(contact or '')
  local same = former ~= '' and sub(before, LEAD_CONTACT_ID, LEAD_CONTACT_ID_END) == former
  -- The index already has this lead with this hash if the stored document was written together with that hash. That is
  -- not certain while values are repaired, nor while a recreated organization has not had all of its records applied
  -- again: its erasure may have deleted the index.
  if not same or sub(stored, SUMMARY_HASH, SUMMARY_HASH_END) ~= summary_hash or repair
    or not organization or byte(organization, JOB_DUE) ~= JOB_NONE_BYTE then
    if not same then found = leaves(former, found) end
    local name = KEYS[contacts + k]
    first = firsts and firsts[name] or first
    first = index_put(name, KEYS[indexes + k], first, sub(KEYS[k], -SHORT_ID), summary_hash)
    if firsts then firsts[name] = first end
  end
  if id == '' then before = opened(before, true) end
  return sub(prefixes, at, at + PUT_LEAD_PREFIX - 1) .. summary_hash .. pack('<I3I3', #before, #id + #fields + #last)
    .. before .. id .. fields .. last .. ARGV[part + count], found
end

return write_each(PUT_LEAD_PREFIX, STORED_CONTACT_ID_LAST, documents, write)
