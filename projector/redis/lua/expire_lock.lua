-- Changes when the lock of a job expires, if it still belongs to its holder.
-- Requires  the lock of this holder, a random text
-- KEYS  lock
-- ARGV  holder, seconds
--       seconds: until it expires; 0 releases it
-- Returns 1, or 0 if the lock has expired or belongs to another holder

if redis.call('GET', KEYS.lock) ~= ARGV.holder then return 0 end
return redis.call('EXPIRE', KEYS.lock, ARGV.seconds)
