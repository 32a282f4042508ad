-- What is done with the index of a contact's leads (contact_index.lua) when contacts change, or when leads leave them.

-- Returns the lead of the set that becomes the first one. The caller stores it, and then removes it from the set.
local function next_first(leads)
  local lowest = call('ZRANGE', leads, '0', '0', 'WITHSCORES')
  if not lowest[1] then return NO_LEAD end
  return pack('<I6', tonumber(lowest[2])) .. lowest[1]
end

-- Removes a lead from the index of a contact. Returns the first lead after the call.
local function index_remove(name, leads, first, id)
  if first and sub(first, HASH_BYTES + 1) == id then
    first = next_first(leads)
    call('SETRANGE', name, FIRST_LEAD_AT, first)
    id = sub(first, HASH_BYTES + 1)
  end
  call('ZREM', leads, id)
  return first
end

-- Adds an id to `pending`, once. `pending` may be nil. Returns it.
local function add(pending, id)
  pending = pending or {}
  if not pending[id] then
    pending[id] = true
    pending[#pending + 1] = id
  end
  return pending
end

-- Adds leads of a contact whose summary is not the present one to `pending`, each once: the first lead, and up to 100
-- of each range between the hashes that are left out, until there are 100. `contact` is the contact's value, or the
-- beginning of it. `pending` may be nil. `shown` may be nil, or has further hashes that are left out, each with a true
-- value (see `pending_leads`). Returns `pending`, and the hash of the present summary.
local function collect_pending(contact, leads, pending, shown)
  local summary_hash, first = NO_CONTACT, first_of(contact)
  if first then
    summary_hash = sub(contact, SUMMARY_HASH, SUMMARY_HASH_END)
    if first == NO_LEAD then return pending, summary_hash end
    local hash = sub(first, 1, HASH_BYTES)
    if hash ~= summary_hash and not (shown and shown[hash]) then pending = add(pending, sub(first, HASH_BYTES + 1)) end
  end
  local count = call('ZCARD', leads)
  if count == 0 then return pending, summary_hash end
  local current = score(summary_hash)
  if call('ZCOUNT', leads, current, current) == count then return pending, summary_hash end -- the usual case
  local left_out = { (unpack_bytes('<I6', summary_hash)) }
  for hash in pairs(shown or {}) do left_out[#left_out + 1] = (unpack_bytes('<I6', hash)) end
  table.sort(left_out)
  local low, found = '-inf', 0
  for n = 1, #left_out + 1 do
    local high = left_out[n] and format('(%d', left_out[n]) or '+inf'
    for _, id in ipairs(call('ZRANGEBYSCORE', leads, low, high, 'LIMIT', '0', '100')) do
      pending, found = add(pending, id), found + 1
    end
    if found >= 100 then break end
    low = high
  end
  return pending, summary_hash
end
