-- Deletes the heartbeats of programs that ended long ago without saying so.
-- Requires  a heartbeat that is older than the given time
-- KEYS  1 writers
-- ARGV  1 the age in milliseconds
-- Returns how many were deleted

local clock, forgotten = redis.call('TIME'), 0
local oldest = clock[1] * 1000 + math.floor(clock[2] / 1000) - ARGV[1]
local found = redis.call('HGETALL', KEYS[1])
for i = 1, #found, 2 do
  if tonumber(string.match(found[i + 1], '^%d+')) < oldest then
    forgotten = forgotten + redis.call('HDEL', KEYS[1], found[i])
  end
end
return forgotten
