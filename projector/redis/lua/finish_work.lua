-- Records that the job of an organization (`E` erase, `R` replay) is finished.
-- KEYS  1 organization
-- ARGV  1 the head that the organization had when the job began
-- Returns 1, or 0 if the organization has changed since then: the job must then run again

if redis.call('GETRANGE', KEYS[1], 0, HEAD - 1) ~= ARGV[1] then return STALE end
redis.call('SETRANGE', KEYS[1], JOB_DUE - 1, '-')
return WRITTEN
