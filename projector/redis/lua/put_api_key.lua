-- Writes an API key and its entry in the record of its hash, if its event is newer than what is stored. If the
-- organization is deleted, only the revocation of a key that is stored is written, and no entry is added: a revocation
-- must not be lost if the organization is recreated before its erasure has reached the key.
-- Requires  a newer event than the one that is stored
-- Uses  key_record
-- KEYS  1 organization  2 API key  3 record of the new hash  [4 record of the stored hash]
-- ARGV  1 head and hash  2 state and expiry  3 the stored hash, '' if it is not known yet  4 '1' for overwrite_equal,
--       else ''
-- Returns STALE, WRITTEN or ORGANIZATION_DELETED; or the stored hash, if nothing was written because its record must be
--         among KEYS: call again with it

local deleted = organization_is_deleted(KEYS[1])
local stored = call('GETRANGE', KEYS[2], 0, -1)
if deleted and (stored == '' or byte(ARGV[2]) ~= REVOKED) then return ORGANIZATION_DELETED end
if not is_newer(stored, ARGV[1], ARGV[4] == '1') then return STALE end
local hash = sub(stored, HEAD + 1)
if hash ~= '' and hash ~= sub(ARGV[1], HEAD + 1) and hash ~= ARGV[3] then return hash end

call('SET', KEYS[2], ARGV[1])
if KEYS[4] then change_key_record(KEYS[4], KEYS[1], KEYS[2], '') end
change_key_record(KEYS[3], KEYS[1], KEYS[2], ARGV[2], deleted)
return WRITTEN
