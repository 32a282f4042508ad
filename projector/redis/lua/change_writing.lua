-- Change which generations are written. From now on no checkpoint covers a batch that was written to others.
-- KEYS  1 positions
-- ARGV  1 the generations as they were read, "1"  2 the generations from now on, "1,2"
-- Returns 1, or 0 where they have changed since they were read, or none would be left: one is always written

if ARGV[2] == '' then return 0 end
if (redis.call('HGET', KEYS[1], 'writing') or '1') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'writing', ARGV[2])
return 1
