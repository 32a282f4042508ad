-- Stores up to which offsets a generation is to be replayed, as far as nobody has stored it yet.
-- Requires  the copy that was read (stamp, incarnation)
-- KEYS  copy, positions
--       positions: those of the rebuild
-- ARGV  stamp, incarnation, targets(field, offset)...
--       stamp, incarnation: those that the copy must have. offset: the end of a partition
-- Returns 1, or 0 if the control record has changed

local stamp, incarnation = unpack(redis.call('HMGET', KEYS.copy, 'stamp', 'incarnation'))
if stamp ~= ARGV.stamp or incarnation ~= ARGV.incarnation then return 0 end
for i = FIRST.targets, #ARGV, SIZE.targets do redis.call('HSETNX', KEYS.positions, ARGV[i].field, ARGV[i].offset) end
return 1
