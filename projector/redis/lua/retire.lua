-- Marks a generation as being dropped. From then on it cannot become live.
-- KEYS  1 generations
-- ARGV  1 generation
-- Returns 1, or 0 if the generation is live

if redis.call('HGET', KEYS[1], 'live') == ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], 'dropping:' .. ARGV[1], '1')
if redis.call('HGET', KEYS[1], 'previous') == ARGV[1] then redis.call('HDEL', KEYS[1], 'previous') end
return 1
