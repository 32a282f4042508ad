-- One request: key, access, both rate limits, ETag and document, in one trip (contract section 1, rows 5 to 10).
-- Values lie as schemas/layouts.py says. The limits are GCRA: a bucket is the time at which it is full again.
-- KEYS  1 active key  2 organization  3 key's limit  4 organization's limit  [5 document; left out for a bad id]
-- ARGV  1 organization's tag  2, 3 key quota and window (seconds)  4, 5 organization quota and window, where the
--       organization has none of its own; then the caller's ETags (12 bytes each), or `*`
-- Returns {401}, {403}, or {status, now, key quota, window, remaining, full in, organization quota, window, remaining,
--         full in, wait, violated, limited, value}: times in microseconds, windows in seconds; violated 1 key, 2
--         organization, 3 both; limited 0 where the charge could not be written; value only with 200 (whole) and
--         304 (its first 34 bytes). 400 stands for "no document was asked for".

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local key = redis.call('GET', KEYS[1])
if not key or string.sub(key, 1, 22) ~= ARGV[1] then return { 401 } end
local expiry = struct.unpack('<I6', key, 23)
if expiry > 0 and expiry * 1000 <= now then return { 401 } end

local organization = redis.call('GET', KEYS[2])
if not organization or string.sub(organization, 1, 1) ~= 'L' or string.sub(organization, 24, 24) ~= '1' then
  return { 403 }
end
local key_quota, key_window, quota, window = struct.unpack('<I4I4I4I4', organization, 25)
if key_quota == 0 then key_quota, key_window = tonumber(ARGV[2]), tonumber(ARGV[3]) end
if quota == 0 then quota, window = tonumber(ARGV[4]), tonumber(ARGV[5]) end

-- `interval` is a whole number of microseconds, so that exactly `quota` requests fit and no rounding adds up.
local function bucket(name, quota, window)
  local interval = math.ceil(window * 1000000 / quota)
  local burst = interval * quota
  local full_at = math.min(math.max(tonumber(redis.call('GET', name) or 0), now), now + burst)
  local room = burst - (full_at - now)
  return { name = name, interval = interval, full_at = full_at, remaining = math.floor(room / interval),
           wait = math.max(0, interval - room) }
end
local by_key = bucket(KEYS[3], key_quota, key_window)
local by_organization = bucket(KEYS[4], quota, window)

local limited = 1
local function charge(bucket)
  bucket.full_at = bucket.full_at + bucket.interval
  bucket.remaining = bucket.remaining - 1
  local expires = string.format('%.0f', math.ceil((bucket.full_at - now) / 1000))
  local failure = redis.pcall('SET', bucket.name, string.format('%.0f', bucket.full_at), 'PX', expires).err
  -- A replica, or a primary that was demoted, may hold what is long out of date: nothing of it is served.
  if failure and string.find(failure, 'READONLY', 1, true) then error(failure) end
  -- Where only the limiter cannot write (memory is full, say), the document is still served.
  if failure then limited = 0 end
end
local function answer(status, value)
  local violated = (by_key.wait > 0 and 1 or 0) + (by_organization.wait > 0 and 2 or 0)
  return { status, now, key_quota, key_window, by_key.remaining, by_key.full_at - now,
           quota, window, by_organization.remaining, by_organization.full_at - now,
           math.max(by_key.wait, by_organization.wait), violated, limited, value }
end

if by_key.wait > 0 or by_organization.wait > 0 then return answer(429) end

local value = KEYS[5] and redis.call('GET', KEYS[5])
if value and string.sub(value, 1, 1) == 'L' then
  local etag = string.sub(value, 23, 34)
  for i = 6, #ARGV do
    if ARGV[i] == etag or ARGV[i] == '*' then return answer(304, string.sub(value, 1, 34)) end
  end
end
charge(by_key)
charge(by_organization)
if not KEYS[5] then return answer(400) end
if not value or string.sub(value, 1, 1) ~= 'L' then return answer(404) end
return answer(200, value)
