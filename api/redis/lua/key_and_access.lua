-- Returns BEING_APPLIED, KEY_REFUSED or NO_ACCESS if a key is not served: rows 5 and 6 of `api/documents.py`. It stands
-- in a script or a function, which goes on if the key is served. It takes from there `key` and `organization`, which are
-- false if there is no such record, `organization_name`, the name of the latter, `now` in microseconds, and `byte`, `sub`
-- and `unpack_bytes`, which are functions of Lua.

local job, access = nil, nil
if organization and byte(organization) == STATE_LIVE then job, access = byte(organization, JOB_DUE, ACCESS) end
-- Until its records have been applied again, any key and any document may be one from before the organization's delete.
if job == JOB_REPLAY_BYTE then return BEING_APPLIED end

-- The record of the key has to be of the organization in the names of all keys.
if not key or sub(key, KEY_ORGANIZATION, KEY_ORGANIZATION_END) ~= sub(organization_name, NAME_TAG, NAME_TAG_END) then
  return KEY_REFUSED
end
-- 0 is never. A revoked key has the expiry 1, which is past.
local expiry = unpack_bytes('<I6', key, KEY_EXPIRY)
if expiry > 0 and expiry * 1000 <= now then return KEY_REFUSED end

if access ~= ACCESS_ON_BYTE then return NO_ACCESS end
