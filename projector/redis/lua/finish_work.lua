-- Records that the job of an organization (`E` erase, `R` replay) is finished.
-- Requires  the lock of this holder, its replication epoch, and the event that the job is about
-- KEYS  organization, lock
-- ARGV  head, holder
--       head: the one that the organization had when the job began. holder: of the lock of the job
-- Returns WRITTEN, or STALE if the organization has changed since then, or if the lock was lost (it expired, or Redis
--         was emptied): the job must then run again

if redis.call('GET', KEYS.lock) ~= ARGV.holder then return STALE end
if redis.call('GETRANGE', KEYS.organization, 0, STORED_HEAD_LAST) ~= ARGV.head then return STALE end
redis.call('SETRANGE', KEYS.organization, JOB_DUE_AT, JOB_NONE)
return WRITTEN
