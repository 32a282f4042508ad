-- Leads and their contact: the summary of a contact, and the index of its leads.

-- Returns what a lead needs of its contact: the hash of the summary, the first lead (see below), and the text of the
-- summary in three parts. They are the beginning of the JSON with the contact's id, its fields, and '}'; or '', the
-- packed summary and '', so an empty first part means that it is packed (compressed, schemas/compression.py). If the
-- contact does not exist, the hash is zeros, the first lead nil, and the text 'null'. Only a marker is shorter than
-- CONTACT_BODY.
local function read_contact(contact)
  if #contact < CONTACT_BODY then return NO_CONTACT, nil, 'null', '', '' end
  -- One call that returns several slices costs little more than one slice.
  local summary_hash, fields_end, first, id = unpack_bytes(CONTACT_FORMAT, contact, SUMMARY_HASH)
  if fields_end >= PACKED_SUMMARY then
    return summary_hash, first, '', sub(contact, CONTACT_BODY + 1, CONTACT_BODY + fields_end - PACKED_SUMMARY), ''
  end
  local fields = sub(contact, CONTACT_BODY + BODY_ORGANIZATION_ID_END + 1, CONTACT_BODY + fields_end)
  return summary_hash, first, id, fields, '}'
end

-- Returns the body of a lead before its summary, with the right first byte: a body that is JSON begins with `(` if the
-- summary inside it is packed, otherwise with `{`. A packed body begins with a zero byte, and is left as it is.
local function opened(before, is_packed)
  local first, wanted = byte(before), is_packed and 40 or 123 -- '(' or '{'
  if first == wanted or first == 0 then return before end
  return string.char(wanted) .. sub(before, BODY_OPENING_END + 1)
end

local function score(summary_hash) return format('%d', (unpack_bytes('<I6', summary_hash))) end

-- The index of a contact's leads contains the hash of the summary inside each lead. The first lead is stored in the
-- contact's own value (summary hash and id), since most contacts have only one. The others are in a sorted set. If the
-- contact does not exist, the set contains all of them. No lead is in both places, and the set of an existing contact
-- without a first lead is empty. This returns the first lead; nil if the contact does not exist.
local function first_of(contact)
  if #contact < CONTACT_BODY then return nil end
  return sub(contact, FIRST_LEAD, FIRST_LEAD_END)
end

-- Puts a lead into the index of a contact, with the hash of the summary inside it. `first` is the first lead before the
-- call. Returns the first lead after it.
local function index_put(name, leads, first, id, summary_hash)
  if first and (first == NO_LEAD or string.find(first, id, HASH_BYTES + 1, true)) then
    call('SETRANGE', name, FIRST_LEAD_AT, summary_hash .. id)
    return summary_hash .. id
  end
  call('ZADD', leads, format('%d', (unpack_bytes('<I6', summary_hash))), id)
  return first
end
