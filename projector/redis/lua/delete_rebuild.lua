-- Deletes the positions of the rebuild that filled a generation of which nothing is left.
-- Requires  the copy that was read (stamp, incarnation), with the generation in `swept`
-- KEYS  1 copy of the control record  2 positions of the rebuild
-- ARGV  1 the stamp and 2 the incarnation that the copy must have  3 the generation
-- Returns 1 if there were any, else 0

local stamp, incarnation, swept = unpack(redis.call('HMGET', KEYS[1], 'stamp', 'incarnation', 'swept'))
if stamp ~= ARGV[1] or incarnation ~= ARGV[2] then return 0 end
if not string.find(',' .. swept .. ',', ',' .. ARGV[3] .. ',', 1, true) then return 0 end
return redis.call('DEL', KEYS[2])
