-- Deletes dead letters, except those that were parked again meanwhile: their record is another one.
-- Requires  the dead letter that was read, by its time
-- KEYS  dead_letters
-- ARGV  letters(field, time)...
--       time: when it was parked, milliseconds since 1970
-- Returns how many were deleted

local deleted = 0
for i = FIRST.letters, #ARGV, SIZE.letters do
  local stored = redis.call('HGET', KEYS.dead_letters, ARGV[i].field)
  if stored and string.format('%.0f', cjson.decode(stored).time) == ARGV[i].time then
    deleted = deleted + redis.call('HDEL', KEYS.dead_letters, ARGV[i].field)
  end
end
return deleted
