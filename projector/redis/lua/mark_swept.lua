-- Notes that a shard holds no key of a generation that is being dropped.
-- Requires  the copy that was read (stamp, incarnation), whose state says that the generation is being dropped
-- KEYS  copy
-- ARGV  stamp, incarnation, generation
--       stamp, incarnation: those that the copy must have
-- Returns 1, or 0 if the control record has changed, or if the shard was emptied

local stamp, incarnation, swept = unpack(redis.call('HMGET', KEYS.copy, 'stamp', 'incarnation', 'swept'))
if stamp ~= ARGV.stamp or incarnation ~= ARGV.incarnation then return 0 end
if not string.find(',' .. swept .. ',', ',' .. ARGV.generation .. ',', 1, true) then
  redis.call('HSET', KEYS.copy, 'swept', swept == '' and ARGV.generation or swept .. ',' .. ARGV.generation)
end
return 1
