-- Reads up to which moment everything that Kafka held is visible in a shard, as the API does.
-- Requires  nothing: it only reads
-- KEYS  as_of
-- Returns the moment in ms since 1970; nothing if it is not known, or later than now

local clock = redis.call('TIME')
local moment = tonumber(redis.call('GET', KEYS.as_of) or 0)
if moment == 0 or moment > clock[1] * 1000 + math.floor(clock[2] / 1000) then return false end
return moment
