-- Creates a copy of the control record in a shard that has none.
-- Requires  no copy: it claims nothing for the shard
-- KEYS  1 copy
-- ARGV  fields and values, in turns
-- Returns 1, or 0 if the copy exists

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
