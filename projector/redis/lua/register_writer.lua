-- Stores that a program that writes is alive, with the time of Redis.
-- Requires  nothing: a program replaces its own heartbeat, whose name it made at random
-- KEYS  1 writers
-- ARGV  1 the id of the writer  2 what it says about itself, JSON
-- Returns 1

-- Deleting first: Redis refuses a script's first write that takes memory if its memory is full, but not later ones. The
-- heartbeat takes the place of the one before, and must not be missing exactly when it has to say what is wrong.
redis.call('HDEL', KEYS[1], ARGV[1])
local clock = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', clock[1] * 1000 + math.floor(clock[2] / 1000)) .. ARGV[2])
return 1
