-- Put the present summaries of contacts into some of their leads. One slice of a fan-out; safe to repeat.
-- KEYS  for each contact, for each generation: contact, the contact's leads, then the leads
-- ARGV  1 number of generations; then for each contact: its UUID, number of leads, the leads' ids in the index in the
--       order of KEYS
-- Returns how many leads were written

local written = 0

local function resplice(name, id, contact, index, summary, mark)
  local value = redis.call('GET', name) or ''
  if contact_of(value) ~= contact then
    index_remove(index, id) -- deleted, or moved to another contact
    return
  end
  local at, length = struct.unpack('<I3I3', value, 35)
  if string.sub(value, 29, 34) ~= mark then
    redis.call('SET', name, string.sub(value, 1, 28) .. mark .. struct.pack('<I3I3', at, #summary)
      .. string.sub(value, 41, 40 + at) .. summary .. string.sub(value, 41 + at + length))
    written = written + 1
  end
  index_put(index, id, mark)
end

local k, a = 1, 2
while a <= #ARGV do
  local contact, count = ARGV[a], tonumber(ARGV[a + 1])
  for _ = 1, tonumber(ARGV[1]) do
    local value = redis.call('GET', KEYS[k]) or ''
    local summary, mark = summary_of(value)
    local index = index_of(KEYS[k], KEYS[k + 1], value)
    for n = 1, count do
      resplice(KEYS[k + 1 + n], ARGV[a + 1 + n], contact, index, summary, mark)
    end
    k = k + 2 + count
  end
  a = a + 2 + count
end
return written
