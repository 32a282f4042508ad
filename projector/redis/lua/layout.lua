-- Functions that read and write the layout of values in Redis (schemas/layouts.py). The loader puts this file before
-- every script of the projector, and the constants of that module before this file. A slice there becomes two constants
-- here, NAME and NAME_END: the first and the last byte, counted from 1. GETRANGE and SETRANGE count from 0.

local STALE, WRITTEN, ORGANIZATION_DELETED, ERASE_DUE, REPLAY_DUE = 0, 1, 2, 8, 16
local NO_CONTACT = string.rep('\0', HASH_BYTES)
local NO_LEAD = string.rep('\0', FIRST_LEAD_END - FIRST_LEAD + 1)
local NO_HEAD = string.rep('\0', HEAD)

local REVOKED = 82 -- 'R', the state in the entry of an API key

local function is_live(value) return string.byte(value, 1) == 76 end -- 'L'

-- Returns whether the event of `head` may replace what is stored. The higher version wins. A tombstone has no version
-- (0), so it must come after the stored event: at a higher offset, or at a later time if the two came from different
-- partitions (after partitions were added). An event that replaces a tombstone must come after it as well.
-- With `overwrite_equal` ('1'), an event with the stored version counts as newer if it leaves the entity in the stored
-- state (live, or deleted by an event), to repair a value in place. A tombstone has no version, so none repairs it.
local function is_newer(stored, head, overwrite_equal)
  if #stored < HEAD then return true end -- nothing is stored, or a value that Leadview did not write
  local state, version, offset, partition, time = struct.unpack(HEAD_FORMAT, stored)
  local new_state, new_version, new_offset, new_partition, new_time = struct.unpack(HEAD_FORMAT, head)
  if new_version == 0 or state == 'T' then
    local after
    if new_partition == partition then after = new_offset > offset else after = new_time > time end
    if not after or new_version == 0 then return after end
  end
  return new_version > version or (overwrite_equal == '1' and new_version == version and new_state == state)
end

-- Returns the marker that replaces a deleted entity. A tombstone keeps the stored version.
local function marker(stored, head)
  if #stored < HEAD or string.byte(head, 1) ~= 84 then return head end -- 'T'
  return 'T' .. string.sub(stored, VERSION, VERSION_END) .. string.sub(head, VERSION_END + 1, HEAD)
end

local function organization_is_deleted(name)
  local value = redis.call('GET', name) -- the value is short, and GET is faster than GETRANGE
  return value and not is_live(value)
end

-- Returns whether an entry in the record of a key comes before another one. It compares bytes, because `<` follows the
-- locale of the server.
local function is_entry_before(entry, other)
  for at = KEY_ENTRY_ID, KEY_ENTRY_ID_END do
    local byte, other_byte = string.byte(entry, at), string.byte(other, at)
    if byte ~= other_byte then return byte < other_byte end
  end
  return false
end

-- Returns when a key with these entries expires: 1, which is past, if any of them is revoked; otherwise the earliest
-- expiry; 0 if none of them expires.
local function expiry_of(entries)
  local earliest = 0
  for _, entry in ipairs(entries) do
    local expiry = struct.unpack('<I6', entry, KEY_ENTRY_EXPIRY)
    if string.byte(entry, KEY_ENTRY_STATE) == REVOKED then expiry = 1 end
    if expiry > 0 and (earliest == 0 or expiry < earliest) then earliest = expiry end
  end
  return earliest
end

-- Puts the entry of an API key into the record of a hash, in place of its former one, or removes it (if `validity` is
-- ''). A record without entries is deleted. With `only_replace`, no entry is added where there was none.
local function change_key_record(name, organization, api_key, validity, only_replace)
  local record, id, entries = redis.call('GET', name) or '', string.sub(api_key, -SHORT_ID), {}
  local add = validity ~= '' and not only_replace
  for at = KEY_ENTRIES + 1, #record, KEY_ENTRY do
    local entry = string.sub(record, at, at + KEY_ENTRY - 1)
    if string.sub(entry, KEY_ENTRY_ID, KEY_ENTRY_ID_END) ~= id then
      entries[#entries + 1] = entry
    else
      add = validity ~= ''
    end
  end
  if add then entries[#entries + 1] = id .. validity end
  if #entries == 0 then
    redis.call('DEL', name)
    return
  end
  table.sort(entries, is_entry_before)
  local tag = string.match(organization, '{(.*)}')
  redis.call('SET', name, tag .. struct.pack('<I6', expiry_of(entries)) .. table.concat(entries))
end

-- Returns the summary of a contact (JSON) and the hash of the summary, from the contact's value; 'null' and zeros if
-- the contact does not exist.
local function summary_of(contact)
  if #contact < CONTACT_BODY or not is_live(contact) then return 'null', NO_CONTACT end
  local fields_end = struct.unpack('<I3', contact, SUMMARY_FIELDS_STOP)
  local id = string.sub(contact, CONTACT_BODY + BODY_ID, CONTACT_BODY + BODY_ID_END)
  local fields = string.sub(contact, CONTACT_BODY + BODY_ORGANIZATION_ID_END + 1, CONTACT_BODY + fields_end)
  return id .. fields .. '}', string.sub(contact, SUMMARY_HASH, SUMMARY_HASH_END)
end

local function score(summary_hash) return (struct.unpack('<I6', summary_hash)) end

-- The index of a contact's leads contains the hash of the summary inside each lead. The first lead is stored in the
-- contact's own value (summary hash and id), since most contacts have only one. The others are in a sorted set. If the
-- contact does not exist, the set contains all of them. No lead is in both places, and the set of an existing contact
-- without a first lead is empty. This returns the first lead; nil if the contact does not exist.
local function first_of(contact)
  if #contact < CONTACT_BODY or not is_live(contact) then return nil end
  return string.sub(contact, FIRST_LEAD, FIRST_LEAD_END)
end

-- Returns the lead of the set that becomes the first one. The caller stores it, and then removes it from the set.
local function next_first(leads)
  local lowest = redis.call('ZRANGE', leads, 0, 0, 'WITHSCORES')
  if not lowest[1] then return NO_LEAD end
  return struct.pack('<I6', tonumber(lowest[2])) .. lowest[1]
end

-- Puts a lead into the index of a contact, with the hash of the summary inside it. `first` is the first lead before the
-- call. Returns the first lead after it.
local function index_put(name, leads, first, id, summary_hash)
  if first and (first == NO_LEAD or string.sub(first, HASH_BYTES + 1) == id) then
    redis.call('SETRANGE', name, FIRST_LEAD - 1, summary_hash .. id)
    return summary_hash .. id
  end
  redis.call('ZADD', leads, score(summary_hash), id)
  return first
end

-- Removes a lead from the index of a contact. Returns the first lead after the call.
local function index_remove(name, leads, first, id)
  if first and string.sub(first, HASH_BYTES + 1) == id then
    first = next_first(leads)
    redis.call('SETRANGE', name, FIRST_LEAD - 1, first)
    id = string.sub(first, HASH_BYTES + 1)
  end
  redis.call('ZREM', leads, id)
  return first
end

-- Adds leads of a contact whose summary is not the present one to `pending`, each once: the first lead, and up to 100
-- with a lower and 100 with a higher hash. `contact` is the contact's value, or the beginning of it.
local function collect_pending(contact, leads, pending)
  local function add(id)
    if not pending[id] then
      pending[id] = true
      pending[#pending + 1] = id
    end
  end
  local summary_hash, first = NO_CONTACT, first_of(contact)
  if first == NO_LEAD then return end
  if first then
    summary_hash = string.sub(contact, SUMMARY_HASH, SUMMARY_HASH_END)
    if string.sub(first, 1, HASH_BYTES) ~= summary_hash then add(string.sub(first, HASH_BYTES + 1)) end
  end
  local current = string.format('(%.0f', score(summary_hash))
  for _, range in ipairs({ { '-inf', current }, { current, '+inf' } }) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', leads, range[1], range[2], 'LIMIT', 0, 100)) do add(id) end
  end
end

-- Returns the UUID of the contact of a stored lead; '' if the value is not a live lead.
local function contact_of(stored_lead)
  if #stored_lead < STORED_CONTACT_ID_END or not is_live(stored_lead) then return '' end
  return string.sub(stored_lead, STORED_CONTACT_ID, STORED_CONTACT_ID_END)
end

-- Adds the contact of a stored lead to `former`, once, if the new body names another contact.
local function collect_former(stored_lead, body, former)
  local before, after = contact_of(stored_lead), string.sub(body, LEAD_CONTACT_ID, LEAD_CONTACT_ID_END)
  if before ~= '' and before ~= after and before ~= former[1] then former[#former + 1] = before end
end

-- Writes the records of a call in all generations. ARGV begins with the number of generations and `overwrite_equal`;
-- then come `arguments` values per record, first the value or marker. KEYS contains, per record, its organization and
-- `keys` names for each generation, first that of the document.
-- If the organization is deleted, only markers are written, and only in place of documents that are stored: a delete
-- must not be lost if the organization is recreated before its erasure has reached the document.
-- `write(a, k, found, deleted)` gets the indexes of a record in ARGV and KEYS, and whether the organization is deleted.
-- It returns whether the record was newer, and adds ids to `found`.
-- Returns the reply: a digit for each record; then, for each id in `found`, the record's number (from 0) and the id.
local function write_each(arguments, keys, write)
  local generations, k = tonumber(ARGV[1]), 1
  local codes, reply = {}, { '' }
  for a = 3, #ARGV, arguments do
    local deleted, found = organization_is_deleted(KEYS[k]), {}
    local result = deleted and ORGANIZATION_DELETED or STALE
    if not (deleted and is_live(ARGV[a])) then
      for i = k + 1, k + keys * generations, keys do
        local possible = not deleted or redis.call('EXISTS', KEYS[i]) == 1
        if possible and write(a, i, found, deleted) then result = WRITTEN end
      end
    end
    for _, id in ipairs(found) do
      reply[#reply + 1] = #codes
      reply[#reply + 1] = id
    end
    codes[#codes + 1] = result
    k = k + 1 + keys * generations
  end
  reply[1] = table.concat(codes)
  return reply
end
