-- Replaces the description of a generation, unless the generation was dropped.
-- KEYS  1 generations
-- ARGV  1 generation  2 its new description, JSON
-- Returns 1, or 0 if the generation does not exist

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
