-- Adds to the use of keys of an organization. Keys that are not stored (any more) are not counted, so that nobody fills
-- Redis with keys that do not exist.
-- Requires  a key that is stored; the counts expire
-- KEYS  uses, records...
--       uses: those of the organization's keys. records: that of each key
-- ARGV  seconds, counts(hash, requests, refusals, last)...
--       seconds: after which the counts expire. last: the time of the last request in milliseconds since 1970
--
-- A field holds "<requests> <refusals> <last> <first>". There are at most 1000 of them.

local room = 1000 - redis.call('HLEN', KEYS.uses)
for i = FIRST.records, #KEYS do
  local a = FIRST.counts + SIZE.counts * (i - FIRST.records)
  if redis.call('EXISTS', KEYS[i]) == 1 then
    local requests, refusals, last, first = 0, 0, 0, ARGV[a].last
    local stored = redis.call('HMGET', KEYS.uses, ARGV[a].hash)[1]
    if stored then requests, refusals, last, first = string.match(stored, '(%d+) (%d+) (%d+) (%d+)') end
    if stored or room > 0 then
      room = room - (stored and 0 or 1)
      requests = string.format('%.0f', requests + ARGV[a].requests)
      refusals = string.format('%.0f', refusals + ARGV[a].refusals)
      last = string.format('%.0f', math.max(last, ARGV[a].last))
      redis.call('HSET', KEYS.uses, ARGV[a].hash, requests .. ' ' .. refusals .. ' ' .. last .. ' ' .. first)
    end
  end
end
redis.call('EXPIRE', KEYS.uses, ARGV.seconds)
