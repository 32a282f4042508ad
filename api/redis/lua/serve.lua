-- Serves one request in one round trip: key, access, both rate limits, ETag and document (rows 5 to 10 of
-- `api/documents.py`). schemas/layouts.py describes the layout of the values. The rate limits use GCRA: the stored
-- value of a bucket is the time at which it will be full again.
-- When the script is loaded, the names of KEYS, ARGV and FIRST become places (runtime/redis/scripts.py). The names in
-- capitals become values: they are constants of schemas/layouts.py (`with_constants` says what _END, _AT, _LAST and
-- _BYTE mean).
-- Requires  nothing: it counts in buckets of the rate limits, which expire
-- KEYS  key, organization, key_limit, organization_limit, document?
--       key: the record of the key. document: absent if the id is invalid
-- ARGV  limits, etags...
--       limits: the default ones: key quota and window (seconds), organization quota and window (4 bytes each, as the
--       record of an organization has them); each pair applies if the organization does not set that limit. One more
--       byte behind them: the request will wait for a document that does not exist, so that 404 is not charged.
--       etags: those of the request (12 bytes each), or `*`
-- Returns BEING_APPLIED, KEY_REFUSED or NO_ACCESS, or a list of two strings. The first one is:
--         outcome, now, key quota, window, full in, organization quota, window, full in, charged
--         (`<I2I8I4I4I8I4I4I8B`).
--         Times are in microseconds, windows in seconds. "full in" is the time until the bucket is full again.
--         charged: 0 if the charge could not be written; the caller then applies its local limiter. NO_ID means that
--         there is no document in KEYS. The second one is the whole value for SERVED, its first 34 bytes for UNCHANGED,
--         otherwise nothing: Redis 7 would hash each byte of the value again if both were one string.
--         LARGE: the value is so long that the caller has to read it by itself (WHOLE in schemas/layouts.py), because
--         the replies of all requests share a connection.

-- A local variable is found faster. A function costs as much as ten arguments whenever the script is called: there is
-- none but for what is rare.
local KEYS, ARGV, call, pcall, format = KEYS, ARGV, redis.call, redis.pcall, string.format
local byte, sub, unpack_bytes = string.byte, string.sub, struct.unpack

local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

-- One call reads everything but the document: a call costs more than a few values that turn out not to be needed.
local key, organization, key_stored, stored =
  unpack(call('MGET', KEYS.key, KEYS.organization, KEYS.key_limit, KEYS.organization_limit))
-- For MGET, a value of another type is none. GET raises an error, which the caller answers with 503.
if not key then call('GET', KEYS.key) end
if not organization then call('GET', KEYS.organization) end

local job, access = nil, nil
if organization and byte(organization) == STATE_LIVE then job, access = byte(organization, JOB_DUE, ACCESS) end
-- Until its records have been applied again, any key and any document may be one from before the organization's delete.
if job == JOB_REPLAY_BYTE then return BEING_APPLIED end

-- The record of the key has to be of the organization in the names of all keys.
if not key or sub(key, KEY_ORGANIZATION, KEY_ORGANIZATION_END) ~= sub(KEYS.organization, NAME_TAG, NAME_TAG_END) then
  return KEY_REFUSED
end
-- 0 is never. A revoked key has the expiry 1, which is past.
local expiry = unpack_bytes('<I6', key, KEY_EXPIRY)
if expiry > 0 and expiry * 1000 <= now then return KEY_REFUSED end

if access ~= ACCESS_ON_BYTE then return NO_ACCESS end

local key_quota, key_window, quota, window = unpack_bytes('<I4I4I4I4', organization, LIMITS)
if key_quota == 0 or quota == 0 then
  local default_key_quota, default_key_window, default_quota, default_window = unpack_bytes('<I4I4I4I4', ARGV.limits)
  if key_quota == 0 then key_quota, key_window = default_key_quota, default_key_window end
  if quota == 0 then quota, window = default_quota, default_window end
end

-- An interval is a whole number of microseconds, rounded up, so that exactly the quota fits and no rounding adds up.
local key_interval, interval = key_window * 1000000 + key_quota - 1, window * 1000000 + quota - 1
key_interval, interval = (key_interval - key_interval % key_quota) / key_quota, (interval - interval % quota) / quota
local key_burst, burst = key_interval * key_quota, interval * quota

-- What is stored becomes a number; false if there is none. (tonumber() would read it twice.)
key_stored, stored = key_stored and key_stored + 0, stored and stored + 0
local key_full_at = key_stored and key_stored > now and key_stored or now
local full_at = stored and stored > now and stored or now
if key_full_at > now + key_burst or full_at > now + burst then
  -- The limit was lowered, or the clock was set back: the bucket drains from now on. One that cannot be written would
  -- not drain, and no wait would be enough: it counts as full.
  local function drained(name, bucket_full_at, latest, bucket_stored)
    if bucket_full_at <= latest then return bucket_full_at, bucket_stored end
    local expires_at = latest - latest % BUCKET_SPAN + BUCKET_SPAN
    local reply = pcall('SET', name, format('%d', latest), 'PXAT', format('%d', expires_at / 1000))
    if not reply.err then return latest, latest end
    if string.find(reply.err, 'READONLY', 1, true) then error(reply.err) end
    return now, bucket_stored
  end
  key_full_at, key_stored = drained(KEYS.key_limit, key_full_at, now + key_burst, key_stored)
  full_at, stored = drained(KEYS.organization_limit, full_at, now + burst, stored)
end

local outcome, value = SERVED, ''
local is_awaited = false
if key_full_at - now > key_burst - key_interval or full_at - now > burst - interval then
  outcome = LIMITED
elseif not KEYS.document then
  outcome = NO_ID
else
  -- Only now, and no more than is needed: what is refused or free must not cost more if the document is large.
  if ARGV[FIRST.etags] then
    value = call('GETRANGE', KEYS.document, '0', ETAG_LAST)
    local etag = sub(value, ETAG)
    for i = FIRST.etags, #ARGV do
      if ARGV[i] == etag or ARGV[i] == '*' then outcome = UNCHANGED end
    end
  end
  if outcome == SERVED then value = call('GETRANGE', KEYS.document, WHOLE_AT, WHOLE_LAST) end
  if byte(value) ~= STATE_LIVE then
    outcome, value, is_awaited = MISSING, '', #ARGV.limits > 16
  elseif #value >= WHOLE_END then
    outcome, value = LARGE, ''
  end
end

-- A bucket expires at the end of the ten seconds in which it will be full again. So most charges need not set its
-- expiry, which costs as much as all the rest of SET. INCRBY is cheaper than a SET that keeps the expiry: it changes
-- the number in place, and its reply is that number. The reply of a SET is a table, as that of a failure is: only this one
-- has `err`.
local charged = 1
if outcome ~= LIMITED and outcome ~= UNCHANGED and not is_awaited then
  key_full_at, full_at = key_full_at + key_interval, full_at + interval
  local span = key_full_at - key_full_at % BUCKET_SPAN
  local reply = key_stored and key_stored - key_stored % BUCKET_SPAN == span
    and pcall('INCRBY', KEYS.key_limit, format('%d', key_full_at - key_stored))
    or pcall('SET', KEYS.key_limit, format('%d', key_full_at), 'PXAT', format('%d', (span + BUCKET_SPAN) / 1000))
  local failure = reply ~= key_full_at and reply.err
  if not failure then
    span = full_at - full_at % BUCKET_SPAN
    reply = stored and stored - stored % BUCKET_SPAN == span
      and pcall('INCRBY', KEYS.organization_limit, format('%d', full_at - stored))
      or pcall('SET', KEYS.organization_limit, format('%d', full_at), 'PXAT',
        format('%d', (span + BUCKET_SPAN) / 1000))
    failure = reply ~= full_at and reply.err
  end
  if failure then
    -- A replica or a demoted primary may have data that is long out of date, which must not be served.
    if string.find(failure, 'READONLY', 1, true) then error(failure) end
    -- If only the limiter cannot write (because the memory is full, for example), the document is still served.
    charged = 0
  end
end

return { struct.pack('<I2I8I4I4I8I4I4I8B', outcome, now, key_quota, key_window, key_full_at - now, quota, window,
  full_at - now, charged), value }
