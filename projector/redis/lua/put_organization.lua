-- Write an organization, or leave its marker, where the event is newer than what is stored.
-- KEYS  1 organization
-- ARGV  1 head  2 API access and limits (17 bytes), empty for a delete
-- Returns STALE or WRITTEN, + ERASE_DUE while keys of a deleted organization are still to be dropped, or + REPLAY_DUE
--         while the topics are still to be read again for one created after a delete

local stored = redis.call('GETRANGE', KEYS[1], 0, JOB_DUE_END - 1)
local work, written = string.sub(stored, JOB_DUE, JOB_DUE_END), STALE
if is_newer(stored, ARGV[1]) then
  written = WRITTEN
  if ARGV[2] == '' then
    work = 'E'
    redis.call('SET', KEYS[1], marker(string.sub(stored, 1, HEAD), ARGV[1]) .. work)
  else
    if #stored > 0 and not is_live(stored) then work = 'R' elseif work ~= 'R' then work = '-' end
    redis.call('SET', KEYS[1], ARGV[1] .. work .. ARGV[2])
  end
end
return written + (work == 'E' and ERASE_DUE or work == 'R' and REPLAY_DUE or 0)
