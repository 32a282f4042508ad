-- Stores that a program that writes is alive, with the time of Redis.
-- Requires  nothing: a program replaces its own heartbeat, whose name it made at random
-- KEYS  writers
-- ARGV  writer, heartbeat
--       writer: its id. heartbeat: what the writer says about itself, JSON
-- Returns 1

local clock = redis.call('TIME')
local now = string.format('%.0f ', clock[1] * 1000 + math.floor(clock[2] / 1000))
local stored = redis.pcall('HSET', KEYS.writers, ARGV.writer, now .. ARGV.heartbeat)
if type(stored) == 'table' then
  -- Redis refuses a script's first write that takes memory if its memory is full, but not later ones. The heartbeat takes
  -- the place of the one before, and must not be missing exactly when it has to say what is wrong.
  redis.call('HDEL', KEYS.writers, ARGV.writer)
  redis.call('HSET', KEYS.writers, ARGV.writer, now .. ARGV.heartbeat)
end
return 1
