-- The record of a key: what the API finds by the hash of a key.

-- Returns whether an entry in the record of a key comes before another one. It compares bytes, because `<` follows the
-- locale of the server.
local function is_entry_before(entry, other)
  for at = KEY_ENTRY_ID, KEY_ENTRY_ID_END do
    local byte, other_byte = byte(entry, at), byte(other, at)
    if byte ~= other_byte then return byte < other_byte end
  end
  return false
end

-- Returns when a key with these entries expires: 1, which is past, if any of them is revoked; otherwise the earliest
-- expiry; 0 if none of them expires.
local function expiry_of(entries)
  local earliest = 0
  for _, entry in ipairs(entries) do
    local expiry = unpack_bytes('<I6', entry, KEY_ENTRY_EXPIRY)
    if byte(entry, KEY_ENTRY_STATE) == KEY_REVOKED_BYTE then expiry = 1 end
    if expiry > 0 and (earliest == 0 or expiry < earliest) then earliest = expiry end
  end
  return earliest
end

-- Returns whether the entry of an API key in the record of a hash says this.
local function has_entry(name, api_key, validity)
  local record, id = call('GET', name) or '', sub(api_key, -SHORT_ID)
  for at = KEY_ENTRIES + 1, #record, KEY_ENTRY do
    if sub(record, at, at + KEY_ENTRY - 1) == id .. validity then return true end
  end
  return false
end

-- Puts the entry of an API key into the record of a hash, in place of its former one, or removes it (if `validity` is
-- ''). A record without entries is deleted. With `only_replace`, no entry is added where there was none.
local function change_key_record(name, organization, api_key, validity, only_replace)
  local record, id, entries = call('GET', name) or '', sub(api_key, -SHORT_ID), {}
  local add = validity ~= '' and not only_replace
  for at = KEY_ENTRIES + 1, #record, KEY_ENTRY do
    local entry = sub(record, at, at + KEY_ENTRY - 1)
    if sub(entry, KEY_ENTRY_ID, KEY_ENTRY_ID_END) ~= id then
      entries[#entries + 1] = entry
    else
      add = validity ~= ''
    end
  end
  if add then entries[#entries + 1] = id .. validity end
  if #entries == 0 then
    call('DEL', name)
    return
  end
  table.sort(entries, is_entry_before)
  local tag = string.match(organization, '{(.*)}')
  call('SET', name, tag .. pack('<I6', expiry_of(entries)) .. table.concat(entries))
end
