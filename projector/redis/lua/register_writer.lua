-- Stores that a program that writes is alive, with the time of Redis.
-- KEYS  1 writers
-- ARGV  1 the id of the writer  2 what it says about itself, JSON
-- Returns 1

local clock = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f ', clock[1] * 1000 + math.floor(clock[2] / 1000)) .. ARGV[2])
return 1
