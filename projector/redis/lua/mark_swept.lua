-- Notes that a shard holds no key of a generation that is being dropped.
-- KEYS  1 copy of the control record
-- ARGV  1 the stamp that the copy must have  2 the generation
-- Returns 1, or 0 if the control record has changed

local stamp, swept = unpack(redis.call('HMGET', KEYS[1], 'stamp', 'swept'))
if stamp ~= ARGV[1] then return 0 end
if not string.find(',' .. swept .. ',', ',' .. ARGV[2] .. ',', 1, true) then
  redis.call('HSET', KEYS[1], 'swept', swept == '' and ARGV[2] or swept .. ',' .. ARGV[2])
end
return 1
