-- The frame of put_documents, put_contacts and put_leads: it writes the records of a call in all generations, each if its
-- event is newer than what is stored. The headers of these scripts describe KEYS and ARGV. `prefixes` has `width` bytes
-- for each record: what its value begins with; of a delete, the marker's head and zeros. `bodies` has the rest of each
-- value; of a delete, it is empty, and a marker replaces the document. (A slice of a long argument would be hashed a
-- second time.) After the organizations come the keys that the script needs: first, if `linked` is 1, one for each
-- document, whose values the frame gets.
-- If the organization is deleted, only markers are written, and only in place of documents that are stored: a delete
-- must not be lost if the organization is recreated before its erasure has reached the document.
-- Before the frame, the script sets `width`, `last`, `linked` and `checks`. In the frame, its sections stand in place of
-- the lines that name them:
-- `write` sets `value` to what KEYS[k] is to hold. It has: where the prefix of the record begins (`at`), which argument
-- is its first one (`part`), what KEYS[k] holds (`stored`: '' if nothing; else at least the bytes up to `last`, which
-- counts from 0, as text), and the values of its organization and of its linked key (`organization`, `link`: false if
-- there is none). It may add ids to `found`, which is nil before it finds any.
-- `check`, for which `checks` is true, has in `stored` what KEYS[k] will hold, also if the record is stale, and whether
-- the organization is deleted (`is_deleted`).
-- `finish` follows all writes.
-- Returns the reply: a digit for each record (STALE, WRITTEN or ORGANIZATION_DELETED; OLDER, REUSED or REPEATED in place
-- of the first two); then, for each id that was found, the record's number (from 0) and the id. A stale record is STALE,
-- whatever its organization.

local KEYS, ARGV, prefixes = KEYS, ARGV, ARGV.prefixes -- a local variable is found faster
local count = #prefixes / width
local generations, overwrite_equal = tonumber(ARGV.generations), ARGV.overwrite_equal == '1'
local documents = count * generations
-- A call of Redis costs as much as several keys in one call. So one EXISTS says whether all documents are new, and all
-- values are written at once. Of stored documents, only what is needed is read: Redis 7 hashes each byte of a string
-- that it makes for Lua. What stale records do not need is read when the first newer one is found.
-- The record of a deleted organization ends after the job that is due (JOB_DUE_END bytes), that of a live one continues.
local stored_any, others = call('EXISTS', unpack(KEYS, 1, documents)) > 0, nil
-- These have their full length from the start: a table that grows is copied each time that its length doubles.
local values, codes = { unpack(KEYS, 1, 2 * documents) }, { unpack(KEYS, 1, count) }
local latest, reply, k, v, at, part = ARGV.repeated == '1' and {}, { '' }, 0, 0, 1, FIRST.bodies
for record = 1, count do
  local code, found, late = STALE_TEXT, nil, nil
  for _ = 1, generations do
    k = k + 1
    local name = KEYS[k]
    local stored = latest and latest[name] or stored_any and call('GETRANGE', name, '0', last) or ''
    local newer = stored == '' or is_newer(stored, prefixes, overwrite_equal, at)
    local late_here = (not newer or overwrite_equal) and #stored >= HEAD and order_of(stored, prefixes, at)
    if not others and (newer or late_here or checks) then
      others = call('MGET', unpack(KEYS, documents + 1, documents + count + linked * documents))
    end
    local organization = others and others[record]
    local is_deleted = organization and #organization == JOB_DUE_END
    if late_here then
      if late_here == REPEATED and byte(stored) == STATE_LIVE
        and sub(stored, BODY_HASH, BODY_HASH_END) ~= sub(prefixes, at + HEAD, at + BODY_HASH_END - 1) then
        late_here = REUSED
      end
      newer = newer and late_here ~= REUSED
      -- Generations of two mapping versions have different bodies of one event, which looks like REUSED in one of
      -- them. So if another generation says REPEATED, that counts. Nothing is said about what a deleted organization had.
      if not (newer or late == OLDER or late == REPEATED or is_deleted) then late = late_here end
    end
    if newer and is_deleted and (stored == '' or ARGV[part] ~= '') then
      if code == STALE_TEXT then code = ORGANIZATION_DELETED_TEXT end
    elseif newer then
      code = WRITTEN_TEXT
      local link, value = others[count + k], nil
--- write
      values[v + 1], values[v + 2] = name, value
      if latest then latest[name] = value end
      stored, v = value, v + 2
    end
--- check
  end
  if late and not (late == REPEATED and code == WRITTEN_TEXT) then code = late end
  codes[record] = code
  at, part = at + width, part + 1
  if found then
    for _, id in ipairs(found) do
      reply[#reply + 1] = record - 1
      reply[#reply + 1] = id
    end
  end
end
if v > 0 then call('MSET', unpack(values, 1, v)) end
--- finish
reply[1] = table.concat(codes)
return reply
