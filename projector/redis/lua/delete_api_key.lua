-- Replaces an API key by a marker and removes its entry from the record of its hash, if the event is newer than what is
-- stored. If the organization is deleted, this is done only if the key is stored.
-- Requires  a newer event than the one that is stored
-- Uses  key_record
-- KEYS  1 organization  2 API key  [3 record of the stored hash]
-- ARGV  1 head  2 the stored hash, '' if it is not known yet
-- Returns the same as put_api_key

local stored = call('GETRANGE', KEYS[2], 0, -1)
if stored == '' and organization_is_deleted(KEYS[1]) then return ORGANIZATION_DELETED end
if not is_newer(stored, ARGV[1]) then return STALE end
local hash = sub(stored, HEAD + 1)
if hash ~= '' and hash ~= ARGV[2] then return hash end

call('SET', KEYS[2], marker(stored, ARGV[1]))
if KEYS[3] then change_key_record(KEYS[3], KEYS[1], KEYS[2], '') end
return WRITTEN
