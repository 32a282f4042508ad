-- Makes another generation live. The API follows this pointer.
-- KEYS  1 generations
-- ARGV  1 the generation that the caller saw live  2 the new live generation  3 time, milliseconds since 1970
-- Returns 1, or 0 if another generation is live by now, or if the new one is being dropped

if (redis.call('HGET', KEYS[1], 'live') or '0') ~= ARGV[1] then return 0 end
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 then return 0 end
redis.call('HSET', KEYS[1], 'live', ARGV[2], 'previous', ARGV[1], 'flipped_at', ARGV[3])
return 1
