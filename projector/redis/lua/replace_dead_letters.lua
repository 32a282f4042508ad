-- Replaces dead letters, except those that were redriven or dropped meanwhile.
-- Requires  the dead letter that was read, by its time
-- KEYS  dead_letters
-- ARGV  letters(field, time, letter)...
--       time: when it was parked, milliseconds since 1970. letter: the new JSON
-- Returns how many were replaced

local replaced = 0
for i = FIRST.letters, #ARGV, SIZE.letters do
  local stored = redis.call('HGET', KEYS.dead_letters, ARGV[i].field)
  if stored and string.format('%.0f', cjson.decode(stored).time) == ARGV[i].time then
    redis.call('HSET', KEYS.dead_letters, ARGV[i].field, ARGV[i].letter)
    replaced = replaced + 1
  end
end
return replaced
