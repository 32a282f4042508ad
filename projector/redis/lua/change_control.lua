-- Changes the part of the control record that is the same in all copies, in one copy.
-- KEYS  1 copy
-- ARGV  1 the stamp that the copy must have, '' for any lower one than the new stamp  2 the new stamp
--       3 the new live generation  4 number of values that follow for the shared fields; then these fields and values;
--       then fields and values of a new copy, for a shard that does not hold the new live generation
-- Returns 1, or 0 if the copy is missing or has another stamp

local stamp = redis.call('HGET', KEYS[1], 'stamp')
if not stamp then return 0 end
if ARGV[1] == '' and stamp >= ARGV[2] or ARGV[1] ~= '' and stamp ~= ARGV[1] then return 0 end

local last = 4 + tonumber(ARGV[4])
local live, filled = unpack(redis.call('HMGET', KEYS[1], 'live', 'filled'))
if live ~= ARGV[3] and not string.find(',' .. filled .. ',', ',' .. ARGV[3] .. ',', 1, true) then
  -- The shard went back to a time before the generation was filled: it is filled again from the beginning.
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], unpack(ARGV, last + 1))
end
redis.call('HSET', KEYS[1], unpack(ARGV, 5, last))
return 1
