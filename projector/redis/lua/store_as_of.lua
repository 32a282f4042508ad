-- Stores up to which moment everything that Kafka held is visible in a shard (`Data-As-Of` of the API).
-- Requires  a copy whose shard holds all of the live generation, and positions that have reached the given offsets, of
--           topics with the given ids. An earlier moment never replaces a later one, unless that is later than now
-- KEYS  copy, as_of
-- ARGV  moment, lasts, apart, needed(partition, offset, topic_id)...
--       moment: in ms since 1970. apart: how far the clocks of two machines may be apart, in ms. lasts: ms until what is stored expires; without a sample 0, and
--       nothing is stored. partition: the field of its position. offset: its end, read after the moment. topic_id: `-`
--       if the brokers do not say it
-- Returns the time of Redis in ms since 1970, and the moment that is stored, 0 for none

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV.lasts == '0' then return { now, 0 } end

local live, filled = unpack(redis.call('HMGET', KEYS.copy, 'live', 'filled'))
if not live or not filled or not string.find(',' .. filled .. ',', ',' .. live .. ',', 1, true) then
  redis.call('DEL', KEYS.as_of)
  return { now, 0 }
end

local moment = tonumber(ARGV.moment)
for i = FIRST.needed, #ARGV, SIZE.needed do
  local position = redis.call('HGET', KEYS.copy, ARGV[i].partition)
  local offset, id = string.match(position or '0 -', '^(%d+) .-(%S+)$')
  if tonumber(offset) < tonumber(ARGV[i].offset) or id ~= ARGV[i].topic_id then moment = 0 end
end
if moment > now then moment = 0 end
local stored = tonumber(redis.call('GET', KEYS.as_of) or 0)
if stored > now then
  -- The clock went back, or is that of another server by now. The API says nothing until the moment is past. If it is far
  -- away, it is none: the clock was wrong before.
  if stored <= now + ARGV.apart then return { now, stored } end
  redis.call('DEL', KEYS.as_of)
  stored = 0
end
-- The sample is new, even if its moment is not reached: what is stored stays true, and lasts.
moment = math.max(moment, stored)
if moment > 0 then redis.call('SET', KEYS.as_of, string.format('%d', moment), 'PX', ARGV.lasts) end
return { now, moment }
