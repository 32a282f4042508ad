-- Takes a lock, which expires.
-- Requires  nobody holds it (`NX`)
-- KEYS  lock
-- ARGV  holder, seconds
--       holder: a random text. seconds: until it expires, unless its holder renews it
-- Returns 1, or 0 if another process holds it

if redis.call('SET', KEYS.lock, ARGV.holder, 'NX', 'EX', ARGV.seconds) then return 1 end
-- Redis stores when it expires. If its clock was set back since, the lock of a holder that died would last as much longer.
if redis.call('PTTL', KEYS.lock) > ARGV.seconds * 1000 then redis.call('EXPIRE', KEYS.lock, ARGV.seconds) end
return 0
