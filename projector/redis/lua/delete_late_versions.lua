-- Takes entities off the list of late versions, except those of which a later record was noted meanwhile.
-- Requires  a late record that is not behind the one that was read
-- KEYS  late_versions
-- ARGV  versions(field, partition, history, offset)...
-- Returns how many were deleted

local deleted = 0
for i = FIRST.versions, #ARGV, SIZE.versions do
  local stored = redis.call('HGET', KEYS.late_versions, ARGV[i].field)
  local late = stored and cjson.decode(stored)
  if late and late.partition == tonumber(ARGV[i].partition) and late.history == tonumber(ARGV[i].history)
    and late.offset <= tonumber(ARGV[i].offset) then
    deleted = deleted + redis.call('HDEL', KEYS.late_versions, ARGV[i].field)
  end
end
return deleted
