-- Serves one request in one round trip: key, access, both rate limits, ETag and document (rows 5 to 10 of
-- `api/documents.py`). schemas/layouts.py describes the layout of the values. The rate limits use GCRA: the stored
-- value of a bucket is the time at which it will be full again.
-- When the script is loaded, the names of KEYS, ARGV and FIRST become places (runtime/redis/scripts.py). The names in
-- capitals become values: they are constants of schemas/layouts.py (`with_constants` says what _END, _AT, _LAST and
-- _BYTE mean).
-- Requires  nothing: it counts in buckets of the rate limits, which expire
-- KEYS  key, organization, key_limit, organization_limit, document?
--       key: the record of the key. document: absent if the id is invalid
-- ARGV  tag, limits, etags...
--       tag: the organization's. limits: the default ones: key quota and window (seconds), organization quota and
--       window (4 bytes each, as the record of an organization has them); each pair applies if the organization does
--       not set that limit. One more byte behind them: the request will wait for a document that does not exist, so that
--       404 is not charged. etags: those of the request (12 bytes each), or `*`
-- Returns 401, 403, BEING_APPLIED (the organization was recreated, and its records have not all been applied again),
--         or a string:
--         status, now, key quota, window, remaining, full in, organization quota, window, remaining, full in, wait,
--         violated, charged (`<I2I8I4I4I4I8I4I4I4I8I8BB`), then the value: the whole value for 200, its first 34 bytes
--         for 304, otherwise nothing. Times are in microseconds, windows in seconds.
--         status LARGE: it would be 200, and is charged as such, but the value is so long that the caller has to read
--         it by itself (WHOLE in schemas/layouts.py): the replies of all requests share a connection.
--         "full in" is the time until the bucket is full again, "wait" the time until the request would be allowed.
--         violated: 1 key, 2 organization, 3 both. charged: 0 if the charge could not be written; the caller then applies
--         its local limiter. 400 means that there is no document in KEYS. The reply is one string because in Redis 6 a
--         list of 14 elements costs more time than the rest of the script.

local KEYS, byte = KEYS, string.byte

local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- One call reads everything but the document: a call costs more than a few values that turn out not to be needed.
local key, organization, key_bucket, organization_bucket =
  unpack(redis.call('MGET', KEYS.key, KEYS.organization, KEYS.key_limit, KEYS.organization_limit))
-- For MGET, a value of another type is none. GET raises an error, which the caller answers with 503.
if not key then redis.call('GET', KEYS.key) end
if not organization then redis.call('GET', KEYS.organization) end

local tag = ARGV.tag
-- Here  admission

local key_quota, key_window, quota, window = struct.unpack('<I4I4I4I4', organization, LIMITS)
if key_quota == 0 or quota == 0 then
  local default_key_quota, default_key_window, default_quota, default_window = struct.unpack('<I4I4I4I4', ARGV.limits)
  if key_quota == 0 then key_quota, key_window = default_key_quota, default_key_window end
  if quota == 0 then quota, window = default_quota, default_window end
end

-- A bucket expires at the end of the ten seconds in which it will be full again. So most charges need not set its expiry,
-- which costs as much as all the rest of SET. `stored` is the value in Redis, nil if there is none.
local function save(name, full_at, stored)
  local expiry, reply = full_at - full_at % BUCKET_SPAN + BUCKET_SPAN, nil
  if stored and stored - stored % BUCKET_SPAN + BUCKET_SPAN == expiry then
    -- Cheaper than a SET that keeps the expiry: it changes the number in place, and its reply is not a table.
    reply = redis.pcall('INCRBY', name, string.format('%d', full_at - stored))
  else
    reply = redis.pcall('SET', name, string.format('%d', full_at), 'PXAT', string.format('%d', expiry / 1000))
  end
  local failure = type(reply) == 'table' and reply.err
  -- A replica or a demoted primary may have data that is long out of date, which must not be served.
  if failure and string.find(failure, 'READONLY', 1, true) then error(failure) end
  -- If only the limiter cannot write (because the memory is full, for example), the document is still served.
  return not failure
end

-- `interval` is a whole number of microseconds, so that exactly `quota` requests fit and no rounding adds up.
local function bucket(name, stored, quota, window)
  local interval = math.ceil(window * 1000000 / quota)
  local burst = interval * quota
  stored = stored and stored + 0 -- a number; tonumber() would read it twice
  local full_at = stored and stored > now and stored or now
  if full_at > now + burst then -- the limit was lowered, or the clock was set back: drain from now on
    full_at = now + burst
    -- A bucket that cannot be written would not drain, and `wait` would be wrong each time: treat it as full.
    if save(name, full_at, stored) then stored = full_at else full_at = now end
  end
  local room = burst - (full_at - now)
  return full_at, interval, math.floor(room / interval), room < interval and interval - room or 0, stored
end
local key_full_at, key_interval, key_remaining, key_wait, key_stored
  = bucket(KEYS.key_limit, key_bucket, key_quota, key_window)
local full_at, interval, remaining, wait, stored = bucket(KEYS.organization_limit, organization_bucket, quota, window)

local status, value = 200, ''
local is_awaited = false
if key_wait > 0 or wait > 0 then
  status = 429
elseif not KEYS.document then
  status = 400
else
  -- Only now, and no more than is needed: what is refused or free must not cost more if the document is large.
  if ARGV[FIRST.etags] then
    value = redis.call('GETRANGE', KEYS.document, '0', ETAG_LAST)
    local etag = string.sub(value, ETAG)
    for i = FIRST.etags, #ARGV do
      if ARGV[i] == etag or ARGV[i] == '*' then status = 304 end
    end
  end
  if status == 200 then value = redis.call('GETRANGE', KEYS.document, WHOLE_AT, WHOLE_LAST) end
  if byte(value) ~= STATE_LIVE then
    status, is_awaited = 404, #ARGV.limits > 16
  elseif #value >= WHOLE_END then
    status = LARGE
  end
end

local charged = 1
if status ~= 429 and status ~= 304 and not is_awaited then
  key_full_at, key_remaining = key_full_at + key_interval, key_remaining - 1
  full_at, remaining = full_at + interval, remaining - 1
  if not (save(KEYS.key_limit, key_full_at, key_stored) and save(KEYS.organization_limit, full_at, stored)) then
    charged = 0
  end
end

if status ~= 200 and status ~= 304 then value = '' end
local violated = (key_wait > 0 and 1 or 0) + (wait > 0 and 2 or 0)
return struct.pack('<I2I8I4I4I4I8I4I4I4I8I8BB', status, now, key_quota, key_window, key_remaining, key_full_at - now,
  quota, window, remaining, full_at - now, key_wait > wait and key_wait or wait, violated, charged) .. value
