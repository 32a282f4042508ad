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
  local state = redis.call('GETRANGE', name, 0, 0)
  return state == 'D' or state == 'T'
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
-- contact is not there, stand in a sorted set. No lead is in both.
local function index_of(name, leads, contact)
  local first = ''
  if #contact >= CONTACT_BODY and is_live(contact) then first = string.sub(contact, 38, CONTACT_BODY) end
  return { name = name, leads = leads, first = first }
end

local function set_first(index, first)
  if index.first ~= first then
    redis.call('SETRANGE', index.name, 37, first)
    index.first = first
  end
end

local function index_put(index, id, mark)
  local first_id = string.sub(index.first, 7)
  if first_id == id then
    set_first(index, mark .. id)
  elseif index.first == NO_LEAD then
    set_first(index, mark .. id)
    redis.call('ZREM', index.leads, id)
  else
    redis.call('ZADD', index.leads, score(mark), id)
  end
end

local function index_remove(index, id)
  if string.sub(index.first, 7) == id then
    set_first(index, NO_LEAD)
  else
    redis.call('ZREM', index.leads, id)
  end
end

-- Collect (in `pending`, each once) up to 100 leads of a contact that show another summary than its present one.
-- `contact` is its value, or the beginning of it.
local function collect_pending(contact, leads, pending)
  local mark = NO_CONTACT
  local function add(id)
    if not pending[id] then
      pending[id] = true
      pending[#pending + 1] = id
    end
  end
  if #contact >= CONTACT_BODY and is_live(contact) then
    mark = string.sub(contact, 29, 34)
    local first_mark, first_id = string.sub(contact, 38, 43), string.sub(contact, 44, CONTACT_BODY)
    if first_mark ~= mark and first_mark .. first_id ~= NO_LEAD then add(first_id) end
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

-- Collect (in `former`, each once) the contact that a stored lead belongs to, where it is another one.
local function collect_former(stored_lead, contact, former)
  local before = contact_of(stored_lead)
  if before ~= '' and before ~= contact and before ~= former[1] then former[#former + 1] = before end
end

-- Add to a script's reply what it found for one of its records: number and id, each.
local function add_all(reply, number, ids)
  for _, id in ipairs(ids) do
    reply[#reply + 1] = number
    reply[#reply + 1] = id
  end
end
