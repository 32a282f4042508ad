-- Replaces an API key by a marker and removes its entry from the record of its hash, if the event is newer than what is
-- stored. If the organization is deleted, this is done only if the key is stored.
-- Requires  a newer event than the one that is stored
-- Uses  order, key_record
-- KEYS  organization, api_key, stored_record?
--       stored_record: the record of the stored hash
-- ARGV  head, stored_hash
--       stored_hash: '' if it is not known yet
-- Returns the same as put_api_key

local stored = call('GETRANGE', KEYS.api_key, 0, -1)
if stored == '' and organization_is_deleted(KEYS.organization) then return ORGANIZATION_DELETED end
if not is_newer(stored, ARGV.head) then
  return not organization_is_deleted(KEYS.organization) and order_of(stored, ARGV.head) or STALE
end
local hash = sub(stored, HEAD + 1)
if hash ~= '' and hash ~= ARGV.stored_hash then return hash end

call('SET', KEYS.api_key, marker(stored, ARGV.head))
if KEYS.stored_record then change_key_record(KEYS.stored_record, KEYS.organization, KEYS.api_key, '') end
return WRITTEN
