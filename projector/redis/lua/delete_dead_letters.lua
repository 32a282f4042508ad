-- Deletes dead letters, except those that were parked again meanwhile: their record is another one.
-- Requires  the dead letter that was read (its time): not one that took its place
-- KEYS  1 dead letters
-- ARGV  for each dead letter: field, the time when it was parked (milliseconds since 1970)
-- Returns how many were deleted

local deleted = 0
for i = 1, #ARGV, 2 do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if stored and string.format('%.0f', cjson.decode(stored).time) == ARGV[i + 1] then
    deleted = deleted + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return deleted
