-- Moves positions forward and stores dead letters, after the writes that they cover.
-- Requires  stamp, incarnation, replication epoch and fence of the session; no position is lower than it expects
-- KEYS  copy, positions, dead_letters?
--       positions: of the live lines the same key as the copy, of a rebuild another one. dead_letters: only in the
--       shard where they are stored
-- ARGV  stamp, incarnation, number, advances(partition, expected, position)..., letters(field, letter)...
--       stamp, incarnation: those of the session. number: of advances. partition: the field of its position.
--       expected: an offset, -1 for none. position: the new one, which begins with the next offset. letter: JSON
-- Returns 1. If it stores nothing, it returns a list: the fields whose position is lower than expected (Redis lost
--         writes), or CONTROL_CHANGED if the control record has changed (then begin the batch again, in a new session)

local stamp, incarnation = unpack(redis.call('HMGET', KEYS.copy, 'stamp', 'incarnation'))
if stamp ~= ARGV.stamp or incarnation ~= ARGV.incarnation then return { CONTROL_CHANGED } end

local letters = FIRST.advances + SIZE.advances * ARGV.number
local lower, stored = {}, {}
for i = FIRST.advances, letters - 1, SIZE.advances do
  local value = redis.call('HGET', KEYS.positions, ARGV[i].partition)
  stored[i] = value and tonumber(string.match(value, '^%d+')) or -1
  if stored[i] < tonumber(ARGV[i].expected) then lower[#lower + 1] = ARGV[i].partition end
end
if #lower > 0 then return lower end

for i = FIRST.advances, letters - 1, SIZE.advances do
  -- A consumer that lost its partition may send a lower position, which never replaces a higher one.
  if tonumber(string.match(ARGV[i].position, '^%d+')) > stored[i] then
    redis.call('HSET', KEYS.positions, ARGV[i].partition, ARGV[i].position)
  end
end
for i = letters, #ARGV, SIZE.letters do redis.call('HSET', KEYS.dead_letters, ARGV[i].field, ARGV[i].letter) end
return 1
