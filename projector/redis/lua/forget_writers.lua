-- Deletes the heartbeats of programs that ended long ago without saying so.
-- Requires  a heartbeat that is older than the given time
-- KEYS  writers
-- ARGV  age
--       age: in milliseconds
-- Returns how many were deleted

local clock, forgotten = redis.call('TIME'), 0
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local found = redis.call('HGETALL', KEYS.writers)
for i = 1, #found, 2 do
  -- If it is from later than now, the clock was set back since.
  if math.abs(now - string.match(found[i + 1], '^%d+')) > tonumber(ARGV.age) then
    forgotten = forgotten + redis.call('HDEL', KEYS.writers, found[i])
  end
end
return forgotten
