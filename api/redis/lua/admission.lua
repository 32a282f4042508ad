-- Returns 401, 403 or BEING_APPLIED if a key is not served: rows 5 and 6 of `api/documents.py`. It stands in a script
-- or a function, which goes on if the key is served. It takes from there `key` and `organization`, which are false if
-- there is no such record, the `tag` of the organization, `now` in microseconds, and `byte`.

local is_live, job, access = organization and byte(organization) == STATE_LIVE, nil, nil
if is_live then job, access = byte(organization, JOB_DUE, ACCESS) end
-- Until its records have been applied again, any key and any document may be one from before the organization's delete.
if job == JOB_REPLAY_BYTE then return BEING_APPLIED end

-- Its organization is at the beginning. This finds it without making a string.
if not key or string.find(key, tag, KEY_ORGANIZATION, true) ~= KEY_ORGANIZATION then return 401 end
-- 0 is never. A revoked key has the expiry 1, which is past.
local expiry = struct.unpack('<I6', key, KEY_EXPIRY)
if expiry > 0 and expiry * 1000 <= now then return 401 end

if access ~= ACCESS_ON_BYTE then return 403 end
