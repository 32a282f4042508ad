-- Creates a copy of the control record in a shard that has none.
-- Requires  no copy: it claims nothing for the shard
-- KEYS  copy
-- ARGV  fields(field, value)...
-- Returns 1, or 0 if the copy exists

if redis.call('EXISTS', KEYS.copy) == 1 then return 0 end
redis.call('HSET', KEYS.copy, unpack(ARGV, FIRST.fields))
return 1
