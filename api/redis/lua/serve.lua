-- Serves one request in one round trip: key, access, both rate limits, ETag and document (contract section 1, rows 5
-- to 10). schemas/layouts.py describes the layout of the values. The rate limits use GCRA: the stored value of a bucket
-- is the time at which it will be full again.
-- KEYS  1 record of the key  2 organization  3 key's limit  4 organization's limit  [5 document; absent if the id is
--       invalid]
-- ARGV  1 organization's tag  2, 3 key quota and window (seconds)  4, 5 organization quota and window; each pair is the
--       default if the organization does not set that limit; then the ETags of the request (12 bytes each), or `*`
-- Returns 401, 403, 503 (the organization was recreated, and its records have not all been applied again), or a string:
--         status, now, key quota, window, remaining, full in, organization quota, window, remaining, full in, wait,
--         violated, charged (`<I2I8I4I4I4I8I4I4I4I8I8BB`), then the value: the whole value for 200, its first 34 bytes
--         for 304, otherwise nothing. Times are in microseconds, windows in seconds.
--         "full in" is the time until the bucket is full again, "wait" the time until the request would be allowed.
--         violated: 1 key, 2 organization, 3 both. charged: 0 if the charge could not be written; the caller then applies
--         its local limiter. 400 means that KEYS has no document. The reply is one string because in Redis 6 a
--         list of 14 elements costs more time than the rest of the script.

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local organization = redis.call('GET', KEYS[2]) or ''
local is_live = string.sub(organization, 1, 1) == 'L'
-- Until its records have been applied again, any key and any document may be one from before the organization's delete.
if is_live and string.sub(organization, JOB_DUE, JOB_DUE_END) == 'R' then return 503 end

local key = redis.call('GET', KEYS[1])
if not key or string.sub(key, KEY_ORGANIZATION, KEY_ORGANIZATION_END) ~= ARGV[1] then return 401 end
local expiry = struct.unpack('<I6', key, KEY_EXPIRY)
if expiry > 0 and expiry * 1000 <= now then return 401 end

if not is_live or string.sub(organization, ACCESS, ACCESS_END) ~= '1' then return 403 end
local key_quota, key_window, quota, window = struct.unpack('<I4I4I4I4', organization, LIMITS)
if key_quota == 0 then key_quota, key_window = tonumber(ARGV[2]), tonumber(ARGV[3]) end
if quota == 0 then quota, window = tonumber(ARGV[4]), tonumber(ARGV[5]) end

local function save(name, full_at)
  local expires = string.format('%d', math.ceil((full_at - now) / 1000))
  local failure = redis.pcall('SET', name, string.format('%d', full_at), 'PX', expires).err
  -- A replica or a demoted primary may have data that is long out of date, which must not be served.
  if failure and string.find(failure, 'READONLY', 1, true) then error(failure) end
  -- If only the limiter cannot write (because the memory is full, for example), the document is still served.
  return not failure
end

-- `interval` is a whole number of microseconds, so that exactly `quota` requests fit and no rounding adds up.
local function bucket(name, quota, window)
  local interval = math.ceil(window * 1000000 / quota)
  local burst = interval * quota
  local full_at = math.max(tonumber(redis.call('GET', name) or 0), now)
  if full_at > now + burst then -- the limit was lowered, or the clock was set back: drain from now on
    full_at = now + burst
    -- A bucket that cannot be written would not drain, and `wait` would be wrong each time: treat it as full.
    if not save(name, full_at) then full_at = now end
  end
  local room = burst - (full_at - now)
  return full_at, interval, math.floor(room / interval), math.max(0, interval - room)
end
local key_full_at, key_interval, key_remaining, key_wait = bucket(KEYS[3], key_quota, key_window)
local full_at, interval, remaining, wait = bucket(KEYS[4], quota, window)

local status, value = 200, KEYS[5] and redis.call('GET', KEYS[5])
if key_wait > 0 or wait > 0 then
  status = 429
elseif not KEYS[5] then
  status = 400
elseif not value or string.sub(value, 1, 1) ~= 'L' then
  status = 404
else
  local etag = string.sub(value, ETAG, ETAG_END)
  for i = 6, #ARGV do
    if ARGV[i] == etag or ARGV[i] == '*' then status = 304 end
  end
end

local charged = 1
if status ~= 429 and status ~= 304 then
  key_full_at, key_remaining = key_full_at + key_interval, key_remaining - 1
  full_at, remaining = full_at + interval, remaining - 1
  if not (save(KEYS[3], key_full_at) and save(KEYS[4], full_at)) then charged = 0 end
end

if status == 304 then value = string.sub(value, 1, ETAG_END) elseif status ~= 200 then value = '' end
local violated = (key_wait > 0 and 1 or 0) + (wait > 0 and 2 or 0)
return struct.pack('<I2I8I4I4I4I8I4I4I4I8I8BB', status, now, key_quota, key_window, key_remaining, key_full_at - now,
  quota, window, remaining, full_at - now, math.max(key_wait, wait), violated, charged) .. value
