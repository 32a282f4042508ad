-- Creates a copy of the control record in a shard that has none.
-- Requires  no copy: it claims nothing for the shard
-- Uses  evicted
-- KEYS  copy, complete, evictions
--       complete: the moments of the topics (`projector/redis/lua/store_as_of.lua`), which begin at this moment
--       evictions: what this server had evicted before (`projector/redis/lua/note_evictions.lua`)
-- ARGV  fields(field, value)...
-- Returns 1, or 0 if the copy exists

if redis.call('EXISTS', KEYS.copy) == 1 then return 0 end
-- Nothing is read for this copy before it exists, so no deletion that Kafka removed earlier is missing in it.
local clock = redis.call('TIME')
redis.call('HSET', KEYS.complete, 'begun', string.format('%d', clock[1] * 1000 + math.floor(clock[2] / 1000)))
redis.call('SET', KEYS.evictions, table.concat({ evicted() }, ' '))
redis.call('HSET', KEYS.copy, unpack(ARGV, FIRST.fields))
return 1
