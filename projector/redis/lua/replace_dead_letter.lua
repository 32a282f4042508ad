-- Replaces a dead letter, unless it was dropped.
-- KEYS  1 dead letters
-- ARGV  1 field  2 JSON
-- Returns 1, or 0 if the dead letter does not exist

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
