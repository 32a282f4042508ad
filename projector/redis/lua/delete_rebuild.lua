-- Deletes the positions of the rebuild that filled a generation of which nothing is left.
-- Requires  the copy that was read (stamp, incarnation), with the generation in `swept`
-- KEYS  copy, positions
--       positions: those of the rebuild
-- ARGV  stamp, incarnation, generation
--       stamp, incarnation: those that the copy must have
-- Returns 1 if there were any, else 0

local stamp, incarnation, swept = unpack(redis.call('HMGET', KEYS.copy, 'stamp', 'incarnation', 'swept'))
if stamp ~= ARGV.stamp or incarnation ~= ARGV.incarnation then return 0 end
if not string.find(',' .. swept .. ',', ',' .. ARGV.generation .. ',', 1, true) then return 0 end
return redis.call('DEL', KEYS.positions)
