-- Forget the positions of partitions that were made again, where they are still those that were read.
-- KEYS  1 positions
-- ARGV  for each partition: field, next offset that it had
-- Returns how many were forgotten

local forgotten = 0
for i = 1, #ARGV, 2 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  if value and string.match(value, '^%d+') == ARGV[i + 1] then
    forgotten = forgotten + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return forgotten
