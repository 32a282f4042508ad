-- Replaces dead letters, except those that were redriven or dropped meanwhile.
-- KEYS  1 dead letters
-- ARGV  for each dead letter: field, new JSON
-- Returns how many were replaced

local replaced = 0
for i = 1, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    replaced = replaced + 1
  end
end
return replaced
