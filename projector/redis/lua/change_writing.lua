-- Changes which generations are written. From then on, no checkpoint is stored for a batch that was written to others.
-- KEYS  1 positions
-- ARGV  1 the generations that the caller read, "1"  2 the new generations, "1,2"
-- Returns 1, or 0 if they have changed since they were read, or if the new ones are empty

if ARGV[2] == '' then return 0 end
if (redis.call('HGET', KEYS[1], 'writing') or '1') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'writing', ARGV[2])
return 1
