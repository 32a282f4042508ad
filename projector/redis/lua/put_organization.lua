-- Writes an organization, or replaces it by a marker, if the event is newer than what is stored.
-- Requires  a newer event than the one that is stored
-- KEYS  1 organization
-- ARGV  1 head  2 API access and limits (17 bytes), '' for a delete
-- Returns STALE or WRITTEN; plus ERASE_DUE until the keys of a deleted organization have been erased, or plus
--         REPLAY_DUE until the records of an organization that was recreated after a delete have been applied again

local stored = call('GETRANGE', KEYS[1], 0, JOB_DUE_END - 1)
local work, written = sub(stored, JOB_DUE, JOB_DUE_END), STALE
if is_newer(stored, ARGV[1]) then
  written = WRITTEN
  if ARGV[2] == '' then
    work = 'E'
    call('SET', KEYS[1], marker(sub(stored, 1, HEAD), ARGV[1]) .. work)
  else
    if #stored > 0 and not is_live(stored) then work = 'R' elseif work ~= 'R' then work = '-' end
    call('SET', KEYS[1], ARGV[1] .. work .. ARGV[2])
  end
end
return written + (work == 'E' and ERASE_DUE or work == 'R' and REPLAY_DUE or 0)
