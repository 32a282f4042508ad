-- Note that an organization's work (`E` erase, `R` replay) is finished.
-- KEYS  1 organization
-- ARGV  1 the head that the work was begun under: a change in between means that it is to be done again
-- Returns 1 when noted, 0 where the organization has changed

if redis.call('GETRANGE', KEYS[1], 0, HEAD - 1) ~= ARGV[1] then return STALE end
redis.call('SETRANGE', KEYS[1], JOB_DUE - 1, '-')
return WRITTEN
