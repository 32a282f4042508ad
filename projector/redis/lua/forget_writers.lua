-- Deletes the heartbeats of programs that ended long ago without saying so.
-- Requires  a heartbeat that is older than the given time
-- KEYS  writers
-- ARGV  age
--       age: in milliseconds
-- Returns how many were deleted

local clock, forgotten = redis.call('TIME'), 0
local oldest = clock[1] * 1000 + math.floor(clock[2] / 1000) - ARGV.age
local found = redis.call('HGETALL', KEYS.writers)
for i = 1, #found, 2 do
  if tonumber(string.match(found[i + 1], '^%d+')) < oldest then
    forgotten = forgotten + redis.call('HDEL', KEYS.writers, found[i])
  end
end
return forgotten
