-- Replaces a copy of the control record, also its positions, by what the other copies have in common.
-- Requires  the copy that was read (stamp, incarnation)
-- KEYS  copy
-- ARGV  stamp, incarnation, fields(field, value)...
--       stamp, incarnation: those that the copy must have
-- Returns 1, or 0 if the copy is another one by now, or is missing

local stamp, incarnation = unpack(redis.call('HMGET', KEYS.copy, 'stamp', 'incarnation'))
if stamp ~= ARGV.stamp or incarnation ~= ARGV.incarnation then return 0 end
redis.call('DEL', KEYS.copy)
redis.call('HSET', KEYS.copy, unpack(ARGV, FIRST.fields))
return 1
