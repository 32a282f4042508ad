-- Moves positions forward and stores dead letters, after the writes that they cover.
-- Requires  stamp and incarnation of the session; no position is lower than the session expects. Also the replication
--           epoch and the fence of the session
-- KEYS  1 control record  2 positions: of the live lines the same key, of a rebuild another one  [3 dead letters; only
--       in the shard where they are stored]
-- ARGV  1 stamp and 2 incarnation of the control record when the batch was begun  3 number of positions; for each:
--       field, expected offset (-1 for none), new value (begins with the next offset); then for each dead letter:
--       field, JSON
-- Returns the number of all dead letters. If it stores nothing, it returns a list: the fields whose position is lower
--         than expected (Redis lost writes), or `stamp` if the control record has changed (then begin the batch again)

local stamp, incarnation = unpack(redis.call('HMGET', KEYS[1], 'stamp', 'incarnation'))
if stamp ~= ARGV[1] or incarnation ~= ARGV[2] then return { 'stamp' } end

local last = 3 + 3 * tonumber(ARGV[3])
local lower, stored = {}, {}
for i = 4, last, 3 do
  local value = redis.call('HGET', KEYS[2], ARGV[i])
  stored[i] = value and tonumber(string.match(value, '^%d+')) or -1
  if stored[i] < tonumber(ARGV[i + 1]) then lower[#lower + 1] = ARGV[i] end
end
if #lower > 0 then return lower end

for i = 4, last, 3 do
  -- A consumer that lost its partition may send a lower position, which never replaces a higher one.
  if tonumber(string.match(ARGV[i + 2], '^%d+')) > stored[i] then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
  end
end
for i = last + 1, #ARGV, 2 do redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1]) end
return KEYS[3] and redis.call('HLEN', KEYS[3]) or 0
