-- Stores up to which offsets a generation is to be replayed, as far as nobody has stored it yet.
-- Requires  the copy that was read (stamp, incarnation): since then no program has written without the generation
-- KEYS  1 copy of the control record  2 positions of the rebuild
-- ARGV  1 the stamp and 2 the incarnation that the copy must have; then for each partition: field, end offset
-- Returns 1, or 0 if the control record has changed

local stamp, incarnation = unpack(redis.call('HMGET', KEYS[1], 'stamp', 'incarnation'))
if stamp ~= ARGV[1] or incarnation ~= ARGV[2] then return 0 end
for i = 3, #ARGV, 2 do redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[i + 1]) end
return 1
