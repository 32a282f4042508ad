-- Change what is known of a generation, unless it has been dropped.
-- KEYS  1 generations
-- ARGV  1 the generation  2 its description, JSON
-- Returns 1, or 0 where there is none to change

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
