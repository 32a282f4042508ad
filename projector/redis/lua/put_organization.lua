-- Writes an organization, or replaces it by a marker, if the event is newer than what is stored.
-- Requires  a newer event than the one that is stored
-- Uses  order
-- KEYS  organization
-- ARGV  head, access
--       access: API access and limits (17 bytes), '' for a delete
-- Returns STALE, OLDER, REUSED, REPEATED or WRITTEN; plus ERASE_DUE until the keys of a deleted organization have been
--         erased, or plus REPLAY_DUE until the records of an organization that was recreated after a delete have been
--         applied again

local stored = call('GETRANGE', KEYS.organization, 0, -1)
local work, written = sub(stored, JOB_DUE, JOB_DUE_END), STALE
if is_newer(stored, ARGV.head) then
  written = WRITTEN
  if ARGV.access == '' then
    work = JOB_ERASE
    call('SET', KEYS.organization, marker(sub(stored, 1, HEAD), ARGV.head) .. work)
  else
    if #stored > 0 and not is_live(stored) then work = JOB_REPLAY elseif work ~= JOB_REPLAY then work = JOB_NONE end
    call('SET', KEYS.organization, ARGV.head .. work .. ARGV.access)
  end
else
  written = order_of(stored, ARGV.head) or STALE
  if written == REPEATED and sub(stored, ACCESS) ~= ARGV.access then written = REUSED end
end
return written + (work == JOB_ERASE and ERASE_DUE or work == JOB_REPLAY and REPLAY_DUE or 0)
