-- Deletes the positions of partitions whose topics were recreated, if they have not changed since they were read.
-- Requires  the position that was read; it claims nothing, the partition is read again
-- KEYS  1 positions
-- ARGV  for each partition: field, the next offset that was read
-- Returns how many were deleted

local forgotten = 0
for i = 1, #ARGV, 2 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value and string.match(value, '^%d+') == ARGV[i + 1] then
    forgotten = forgotten + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return forgotten
