-- Moves positions forward and stores dead letters, after the writes that they cover.
-- KEYS  1 positions  [2 dead letters; absent for the copy of another shard]
-- ARGV  1 the generations that the batch was written to, "1,2" ('' for a copy)  2 number of positions; for each:
--       field, expected offset (-1 for none), new value (begins with the next offset); then for each dead letter:
--       field, JSON
-- Returns the number of all dead letters. If it stores nothing, it returns a list: the fields whose position is lower
--         than expected (Redis lost writes), or `writing` if other generations must be written (then write to those)

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
  -- A consumer that lost its partition may send a lower position, which never replaces a higher one.
  if tonumber(string.match(ARGV[i + 2], '^%d+')) > stored[i] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
  end
end
for i = last + 1, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
return KEYS[2] and redis.call('HLEN', KEYS[2]) or 0
