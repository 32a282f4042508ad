-- Note that a generation is being dropped: from now on it cannot be served.
-- KEYS  1 generations
-- ARGV  1 the generation
-- Returns 1, or 0 where it is live

if redis.call('HGET', KEYS[1], 'live') == ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], 'dropping:' .. ARGV[1], '1')
if redis.call('HGET', KEYS[1], 'previous') == ARGV[1] then redis.call('HDEL', KEYS[1], 'previous') end
return 1
