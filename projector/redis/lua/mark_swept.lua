-- Notes that a shard holds no key of a generation that is being dropped.
-- Requires  the copy that was read (stamp, incarnation): its state says that the generation is being dropped
-- KEYS  1 copy of the control record
-- ARGV  1 the stamp and 2 the incarnation that the copy must have  3 the generation
-- Returns 1, or 0 if the control record has changed, or if the shard was emptied

local stamp, incarnation, swept = unpack(redis.call('HMGET', KEYS[1], 'stamp', 'incarnation', 'swept'))
if stamp ~= ARGV[1] or incarnation ~= ARGV[2] then return 0 end
if not string.find(',' .. swept .. ',', ',' .. ARGV[3] .. ',', 1, true) then
  redis.call('HSET', KEYS[1], 'swept', swept == '' and ARGV[3] or swept .. ',' .. ARGV[3])
end
return 1
