-- Reads the heartbeats of all programs that write, with the time of Redis.
-- Requires  nothing: it only reads
-- KEYS  writers
-- Returns a list: the time in milliseconds since 1970; then for each writer its id, and what `register_writer` stored

local clock = redis.call('TIME')
local found = redis.call('HGETALL', KEYS.writers)
table.insert(found, 1, string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000)))
return found
