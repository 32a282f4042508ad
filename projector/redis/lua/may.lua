-- Asks which commands this user may run. Nothing is run.
-- Requires  nothing: it only reads
-- ARGV  commands
--       with their arguments, as JSON: [["get", "lv3:x"], ...]
-- Returns a list: 1 for each command that is allowed, else 0; or 'unknown' if this Redis cannot say it (before 7.0)

if not redis.acl_check_cmd then return 'unknown' end
local found = {}
for place, words in ipairs(cjson.decode(ARGV.commands)) do
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  found[place] = (known and allowed) and 1 or 0
end
return found
