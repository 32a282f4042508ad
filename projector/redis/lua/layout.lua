-- Stands before every script of the projector: how values lie in Redis (schemas/layouts.py says it in full).

local STALE, WRITTEN, ORGANIZATION_DELETED, ERASE_DUE, REPLAY_DUE = 0, 1, 2, 8, 16
local HEAD = 22
local CONTACT_BODY = 65
local NO_CONTACT = string.rep('\0', 6)
local NO_LEAD = string.rep('\0', 28)
local NOT_SHOWN = string.rep('\0', HEAD)

local function is_live(value) return string.byte(value, 1) == 76 end -- 'L'

-- May the event of `head` replace what is stored? Versions decide. A tombstone has none (0): there the offset
-- decides, or the time where the two came from different partitions (their number was raised in between).
-- With `again` ('1'), the very event that is stored counts as newer: that rebuilds a document in place.
local function is_newer(stored, head, again)
  if #stored < HEAD then return true end -- nothing there, or nothing of ours
  local state, version, offset, partition, time = struct.unpack('<c1I7I6I2I6', stored)
  local _, new_version, new_offset, new_partition, new_time = struct.unpack('<c1I7I6I2I6', head)
  if new_version == 0 or state == 'T' then
    local after
    if new_partition == partition then after = new_offset > offset else after = new_time > time end
    if not after or new_version == 0 then return after end
  end
  return new_version > version or (again == '1' and new_version == version)
end

-- What stays of a deleted entity. A tombstone keeps the version before it.
local function marker(stored, head)
  if #stored < HEAD or string.byte(head, 1) ~= 84 then return head end -- 'T'
  return 'T' .. string.sub(stored, 2, 8) .. string.sub(head, 9, HEAD)
end

local function organization_is_deleted(name)
  local value = redis.call('GET', name) -- faster than a part of it: the value is short
  return value and not is_live(value)
end

-- The summary of a contact and its mark, from the contact's value: both ids stand first in it, in fixed length.
local function summary_of(contact)
  if #contact < CONTACT_BODY or not is_live(contact) then return 'null', NO_CONTACT end
  local mark, fields_end = struct.unpack('<c6I3', contact, 29)
  local body = CONTACT_BODY
  return string.sub(contact, body + 1, body + 44) .. string.sub(contact, body + 102, body + fields_end) .. '}', mark
end

local function score(mark) return (struct.unpack('<I6', mark)) end

-- The index of a contact's leads: each with the mark of the summary that it shows. The first stands in the contact's
-- own value (28 bytes: mark and id), since most contacts have one lead only; the others, and all of them while the
-- contact is not there, stand in a sorted set. No lead is in both, and without a first there are no others.
local function first_of(contact)
  if #contact < CONTACT_BODY or not is_live(contact) then return nil end
  return string.sub(contact, 38, CONTACT_BODY)
end

-- The lead of the set that becomes the first one: to be written as such, and then taken out of the set.
local function next_first(leads)
  local lowest = redis.call('ZRANGE', leads, 0, 0, 'WITHSCORES')
  if not lowest[1] then return NO_LEAD end
  return struct.pack('<I6', tonumber(lowest[2])) .. lowest[1]
end

local function index_put(name, leads, first, id, mark)
  if first and (first == NO_LEAD or string.sub(first, 7) == id) then
    redis.call('SETRANGE', name, 37, mark .. id)
    return mark .. id
  end
  redis.call('ZADD', leads, score(mark), id)
  return first
end

local function index_remove(name, leads, first, id)
  if first and string.sub(first, 7) == id then
    first = next_first(leads)
    redis.call('SETRANGE', name, 37, first)
    id = string.sub(first, 7)
  end
  redis.call('ZREM', leads, id)
  return first
end

-- Collect (in `pending`, each once) up to 100 leads of a contact that show another summary than its present one.
-- `contact` is its value, or the beginning of it.
local function collect_pending(contact, leads, pending)
  local function add(id)
    if not pending[id] then
      pending[id] = true
      pending[#pending + 1] = id
    end
  end
  local mark, first = NO_CONTACT, first_of(contact)
  if first == NO_LEAD then return end
  if first then
    mark = string.sub(contact, 29, 34)
    if string.sub(first, 1, 6) ~= mark then add(string.sub(first, 7)) end
  end
  local current = string.format('(%.0f', score(mark))
  for _, range in ipairs({ { '-inf', current }, { current, '+inf' } }) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', leads, range[1], range[2], 'LIMIT', 0, 100)) do add(id) end
  end
end

-- Which contact a stored lead belongs to: a UUID of 36 characters, '' for no lead.
local function contact_of(stored_lead)
  if #stored_lead < 192 or not is_live(stored_lead) then return '' end
  return string.sub(stored_lead, 157, 192)
end

-- Collect (in `former`, each once) the contact that a stored lead belongs to, where its new body names another one.
local function collect_former(stored_lead, body, former)
  local before, after = contact_of(stored_lead), string.sub(body, 117, 152)
  if before ~= '' and before ~= after and before ~= former[1] then former[#former + 1] = before end
end

-- Write the records of a call, in all generations. ARGV begins with the number of generations and `again`; then each
-- record has `arguments` of ARGV, and of KEYS its organization and `keys` for each generation.
-- `write(a, k, found)` gets a record's places in both; it answers whether it was newer, and adds ids to `found`.
-- Returns the reply: a digit for each record; then, for each id that was found, the record's number (from 0) and the id.
local function write_each(arguments, keys, write)
  local generations, k = tonumber(ARGV[1]), 1
  local codes, reply = {}, { '' }
  for a = 3, #ARGV, arguments do
    local result, found = STALE, {}
    if organization_is_deleted(KEYS[k]) then
      result = ORGANIZATION_DELETED
    else
      for i = k + 1, k + keys * generations, keys do
        if write(a, i, found) then result = WRITTEN end
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
