-- Move positions forward and keep dead letters, after the writes that they cover.
-- KEYS  1 positions  [2 dead letters; left out for the copy of another shard]
-- ARGV  1 the generations that were written to, "1,2", '' for a copy  2 number of positions; for each: field, offset expected
--       (-1 for none), new value (begins with the next offset); then for each dead letter: field, JSON
-- Returns the number of dead letters; or, nothing written, the fields whose position is lower than expected
--         (Redis went back in time), or `writing` where other generations are to be written: write again, to those

if KEYS[2] and (redis.call('HGET', KEYS[1], 'writing') or '1') ~= ARGV[1] then return { 'writing' } end

local last = 2 + 3 * tonumber(ARGV[2])
local lower, stored = {}, {}
for i = 3, last, 3 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  stored[i] = value and tonumber(string.match(value, '^%d+')) or -1
  if stored[i] < tonumber(ARGV[i + 1]) then lower[#lower + 1] = ARGV[i] end
end
if #lower > 0 then return lower end

for i = 3, last, 3 do
  -- A zombie's position may be behind: it never takes a position back.
  if tonumber(string.match(ARGV[i + 2], '^%d+')) > stored[i] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
  end
end
for i = last + 1, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return KEYS[2] and redis.call('HLEN', KEYS[2]) or 0
