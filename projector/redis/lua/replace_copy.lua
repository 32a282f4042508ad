-- Replaces a copy of the control record, also its positions, by what the other copies have in common.
-- Requires  the copy that was read (stamp, incarnation): the shard was not emptied since then
-- KEYS  1 copy
-- ARGV  1 the stamp and 2 the incarnation that the copy must have; then fields and values, in turns
-- Returns 1, or 0 if the copy is another one by now, or is missing

local stamp, incarnation = unpack(redis.call('HMGET', KEYS[1], 'stamp', 'incarnation'))
if stamp ~= ARGV[1] or incarnation ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
return 1
