-- Stands before every script of the projector: how values lie in Redis (schemas/layouts.py says it in full).

local STALE, WRITTEN, ORGANIZATION_DELETED, ERASE_DUE, REPLAY_DUE = 0, 1, 2, 8, 16
local HEAD = 22
local NO_CONTACT = '\0\0\0\0\0\0'
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

-- The summary of a contact and its mark, taken from the contact's document: both ids stand first, in fixed length.
local function summary_of(name)
  local value = redis.call('GET', name)
  if not value or #value < 37 or not is_live(value) then return 'null', NO_CONTACT end
  local mark, fields_end = struct.unpack('<c6I3', value, 29)
  return string.sub(value, 38, 81) .. string.sub(value, 139, 37 + fields_end) .. '}', mark
end

local function score(mark) return (struct.unpack('<I6', mark)) end

-- Collect (in `pending`, each once) up to 100 leads of a contact that show another summary than its present one.
local function collect_pending(stored_contact, leads, pending)
  local mark = NO_CONTACT
  if #stored_contact >= 34 and is_live(stored_contact) then mark = string.sub(stored_contact, 29, 34) end
  local current = string.format('(%.0f', score(mark))
  for _, range in ipairs({ { '-inf', current }, { current, '+inf' } }) do
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', leads, range[1], range[2], 'LIMIT', 0, 100)) do
      if not pending[id] then
        pending[id] = true
        pending[#pending + 1] = id
      end
    end
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
