-- Writes an API key, if its event is newer than what is stored. Only an active key has a record that the API looks up.
-- KEYS  1 organization  2 entity  3 record of the new hash  [4 record of the stored hash]
-- ARGV  1 head and hash  2 the record, '' if the key is revoked  3 the stored hash, '' if it is not known yet
--       4 '1' for overwrite_equal, else ''
-- Returns STALE, WRITTEN or ORGANIZATION_DELETED; or the stored hash, if nothing was written because its record must be
--         among KEYS: call again with it

if organization_is_deleted(KEYS[1]) then return ORGANIZATION_DELETED end
local stored = redis.call('GETRANGE', KEYS[2], 0, -1)
if not is_newer(stored, ARGV[1], ARGV[4]) then return STALE end
local hash = string.sub(stored, HEAD + 1)
if hash ~= '' and hash ~= string.sub(ARGV[1], HEAD + 1) and hash ~= ARGV[3] then return hash end

redis.call('SET', KEYS[2], ARGV[1])
if ARGV[2] == '' then redis.call('DEL', KEYS[3]) else redis.call('SET', KEYS[3], ARGV[2]) end
if KEYS[4] then redis.call('DEL', KEYS[4]) end
return WRITTEN
