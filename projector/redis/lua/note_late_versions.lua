-- Notes entities whose last record is not their newest one.
-- Requires  nothing: it only adds, and a later record of the entity ends it
-- KEYS  late_versions
-- ARGV  most, versions(field, version)...
--       most: how many fields may be there before another one is only counted, by what its name begins with up to the
--       colon. version: JSON
-- Returns how many are noted by their name

local noted = 0
for i = FIRST.versions, #ARGV, SIZE.versions do
  local field = ARGV[i].field
  if redis.call('HEXISTS', KEYS.late_versions, field) == 1
    or redis.call('HLEN', KEYS.late_versions) < tonumber(ARGV.most) then
    redis.call('HSET', KEYS.late_versions, field, ARGV[i].version)
    noted = noted + 1
  else
    redis.call('HINCRBY', KEYS.late_versions, string.match(field, '^[^:]+'), 1)
  end
end
return noted
