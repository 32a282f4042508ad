-- Adds to the use of keys of an organization. Keys that are not stored (any more) are not counted, so that nobody fills
-- Redis with keys that do not exist.
-- Requires  a key that is stored; the counts expire
-- KEYS  1 use of the organization's keys  then the record of each key
-- ARGV  1 seconds after which the counts expire; then for each key: its hash, requests, refusals, time of the last
--       request in milliseconds since 1970
-- Returns the number of keys that were counted. A field holds "<requests> <refusals> <last> <first>".

local counted = 0
local room = 1000 - redis.call('HLEN', KEYS[1])
for i = 2, #KEYS do
  local a = 2 + 4 * (i - 2)
  if redis.call('EXISTS', KEYS[i]) == 1 then
    local requests, refusals, last, first = 0, 0, 0, ARGV[a + 3]
    local stored = redis.call('HMGET', KEYS[1], ARGV[a])[1]
    if stored then requests, refusals, last, first = string.match(stored, '(%d+) (%d+) (%d+) (%d+)') end
    if stored or room > 0 then
      room = room - (stored and 0 or 1)
      requests = string.format('%.0f', requests + ARGV[a + 1])
      refusals = string.format('%.0f', refusals + ARGV[a + 2])
      last = string.format('%.0f', math.max(last, ARGV[a + 3]))
      redis.call('HSET', KEYS[1], ARGV[a], requests .. ' ' .. refusals .. ' ' .. last .. ' ' .. first)
      counted = counted + 1
    end
  end
end
if counted > 0 then redis.call('EXPIRE', KEYS[1], ARGV[1]) end
return counted
