-- Puts the present summaries of contacts into some of their leads: one batch of a fan-out. It is safe to repeat. For a
-- deleted organization it does nothing, because its erasure may have passed the places that this would write.
-- Requires  a lead of the contact, in an organization that is not deleted; the summary is the one that is stored
-- Uses  contact_index, index_repair
-- KEYS  contacts...
--       for each contact: organization; then for each generation: contact, index of the contact's leads, then the leads
-- ARGV  generations, leads...
--       generations: how many. leads: for each contact its UUID, the number of leads, the short ids of the leads in the
--       order of KEYS
-- Returns how many leads were written; or, if it has left the rest to the next call because readers wait meanwhile,
--         -1 minus that number

local MOST_BYTES = 2097152
local written, bytes = 0, 0

-- Updates one lead and its entry in the index. Returns the first lead of the index after that.
local function resplice(name, id, contact, leads, lead, first, summary, summary_hash, is_packed)
  local value = call('GET', lead) or ''
  if sub(value, STORED_CONTACT_ID, STORED_CONTACT_ID_END) ~= contact then -- deleted or moved
    return index_remove(name, leads, first, id)
  end
  if sub(value, SUMMARY_HASH, SUMMARY_HASH_END) ~= summary_hash then
    local at, length = unpack_bytes('<I3I3', value, LEAD_SUMMARY_PLACE)
    call('SET', lead, sub(value, 1, SUMMARY_HASH - 1) .. summary_hash .. pack('<I3I3', at, #summary)
      .. opened(sub(value, LEAD_BODY + 1, LEAD_BODY + at), is_packed) .. summary
      .. sub(value, LEAD_BODY + at + length + 1))
    written, bytes = written + 1, bytes + #value
  end
  return index_put(name, leads, first, id, summary_hash)
end

local generations, k, a = tonumber(ARGV.generations), FIRST.contacts, FIRST.leads
while a <= #ARGV do
  local contact, count = ARGV[a], tonumber(ARGV[a + 1])
  local last = k + generations * (2 + count)
  if not organization_is_deleted(KEYS[k]) then
    for c = k + 1, last, 2 + count do
      local value = call('GET', KEYS[c]) or ''
      local summary_hash, first, id, fields, last_byte = read_contact(value)
      local summary = id .. fields .. last_byte
      for n = 1, count do
        if bytes > MOST_BYTES then return -1 - written end
        first = resplice(KEYS[c], ARGV[a + 1 + n], contact, KEYS[c + 1], KEYS[c + 1 + n], first, summary, summary_hash,
          id == '')
      end
    end
  end
  k, a = last + 1, a + 2 + count
end
return written
