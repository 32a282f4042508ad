-- Records that the job of an organization (`E` erase, `R` replay) is finished.
-- Requires  the lock of this holder and the event that the job is about; also the replication epoch of the lock
-- KEYS  1 organization  2 lock of the job
-- ARGV  1 the head that the organization had when the job began  2 holder of the lock
-- Returns 1, or 0 if the organization has changed since then, or if the lock was lost (it expired, or Redis was
--         emptied): the job must then run again

if redis.call('GET', KEYS[2]) ~= ARGV[2] then return STALE end
if redis.call('GETRANGE', KEYS[1], 0, HEAD - 1) ~= ARGV[1] then return STALE end
redis.call('SETRANGE', KEYS[1], JOB_DUE - 1, '-')
return WRITTEN
