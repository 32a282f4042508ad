-- Writes an API key and its entry in the record of its hash, if its event is newer than what is stored. If the
-- organization is deleted, only the revocation of a key that is stored is written, and no entry is added: a revocation
-- must not be lost if the organization is recreated before its erasure has reached the key.
-- Requires  a newer event than the one that is stored
-- Uses  order, key_record
-- KEYS  organization, api_key, record, stored_record?
--       record, stored_record: the records of the new hash and of the stored one
-- ARGV  entity, validity, stored_hash, overwrite_equal
--       entity: head and hash. validity: state and expiry. stored_hash: '' if it is not known yet. overwrite_equal: '1'
--       or ''
-- Returns STALE, OLDER, REUSED, REPEATED, WRITTEN or ORGANIZATION_DELETED; or the stored hash, if nothing was written
--         because its record must be among KEYS: call again with it

local deleted = organization_is_deleted(KEYS.organization)
local stored = call('GETRANGE', KEYS.api_key, 0, -1)
if deleted and (stored == '' or byte(ARGV.validity) ~= KEY_REVOKED_BYTE) then return ORGANIZATION_DELETED end
local hash, overwrite_equal = sub(stored, HEAD + 1), ARGV.overwrite_equal == '1'
local newer = is_newer(stored, ARGV.entity, overwrite_equal)
if not newer or overwrite_equal and #stored >= HEAD then
  local order = not deleted and order_of(stored, ARGV.entity)
  local is_same_hash = hash == sub(ARGV.entity, HEAD + 1)
  if order == REPEATED and not (is_same_hash and has_entry(KEYS.record, KEYS.api_key, ARGV.validity)) then
    order = REUSED
  end
  if order == REUSED or not newer then return order or STALE end
end
if hash ~= '' and hash ~= sub(ARGV.entity, HEAD + 1) and hash ~= ARGV.stored_hash then return hash end

call('SET', KEYS.api_key, ARGV.entity)
if KEYS.stored_record then change_key_record(KEYS.stored_record, KEYS.organization, KEYS.api_key, '') end
change_key_record(KEYS.record, KEYS.organization, KEYS.api_key, ARGV.validity, deleted)
return WRITTEN
