-- Put the present summary of a contact into some of its leads. One slice of a fan-out; safe to repeat.
-- KEYS  for each generation: contact, the contact's leads, then the leads
-- ARGV  1 contact's UUID; then the leads' ids in the index, in the order of KEYS
-- Returns how many leads were written

local written = 0
local width = #ARGV + 1
for i = 1, #KEYS, width do
  local summary, mark = summary_of(KEYS[i])
  local leads = KEYS[i + 1]
  for n = 2, #ARGV do
    local name = KEYS[i + n]
    local value = redis.call('GET', name) or ''
    if contact_of(value) ~= ARGV[1] then
      redis.call('ZREM', leads, ARGV[n]) -- deleted, or moved to another contact
    else
      local at, length = struct.unpack('<I3I3', value, 35)
      if string.sub(value, 29, 34) ~= mark then
        redis.call('SET', name, string.sub(value, 1, 28) .. mark .. struct.pack('<I3I3', at, #summary)
          .. string.sub(value, 41, 40 + at) .. summary .. string.sub(value, 41 + at + length))
        written = written + 1
      end
      redis.call('ZADD', leads, score(mark), ARGV[n])
    end
  end
end
return written
