-- Replaces dead letters, except those that were redriven or dropped meanwhile.
-- Requires  the dead letter that was read (its time): not one that took its place
-- KEYS  1 dead letters
-- ARGV  for each dead letter: field, the time when it was parked (milliseconds since 1970), new JSON
-- Returns how many were replaced

local replaced = 0
for i = 1, #ARGV, 3 do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if stored and string.format('%.0f', cjson.decode(stored).time) == ARGV[i + 1] then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 2])
    replaced = replaced + 1
  end
end
return replaced
