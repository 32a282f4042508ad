-- A peer: nginx answers what Leadview's API does, with the same script call to Redis (api/redis/lua/serve.lua).
-- Takes the port of Redis, the script's SHA-1, what names begin with, and the generation that is served; returns what
-- serves a request for a kind of record.
--
-- As in Leadview: the key's form, checksum and SHA-256, remembered for 8192 keys; one call; the same headers and body.
-- Not as in Leadview: one generation, no CORS, no Data-As-Of, short error bodies, no metrics, limits for all organizations built in.

local redis_port, sha, prefix, generation = ...
local ffi = require 'ffi'
local redis = require 'nginx.redis'
local lrucache = require 'resty.lrucache'

ffi.cdef [[
  unsigned char *SHA256(const unsigned char *d, size_t n, unsigned char *md);
  typedef struct __attribute__((packed)) { // as the header of serve.lua says
    uint16_t status; uint64_t now;
    uint32_t key_quota, key_window; uint64_t key_full;
    uint32_t quota, window; uint64_t full;
    uint8_t charged;
  } head;
]]
local ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
local REMEMBERED = 8192
local IDLE_MS, CONNECTIONS = 60000, 256

local sub, byte, ceil, floor = string.sub, string.byte, math.ceil, math.floor
local remembered = assert(lrucache.new(REMEMBERED))

local HEX = {}
for i = 0, 255 do HEX[i] = string.format('%02x', i) end
local function hex(bytes)
  local digits = {}
  for i = 1, #bytes do digits[i] = HEX[byte(bytes, i)] end
  return table.concat(digits)
end

local NIBBLE = {}
for i = 0, 15 do
  NIBBLE[byte(string.format('%x', i))] = i
  NIBBLE[byte(string.format('%X', i))] = i
end
local packed = ffi.new('unsigned char[16]')
-- The record's id in 22 base64 characters; nil if it is not a canonical UUID.
local function short_id(uuid)
  if #uuid ~= 36 then return nil end
  local at = 1
  for i = 0, 15 do
    if at == 9 or at == 14 or at == 19 or at == 24 then
      if byte(uuid, at) ~= 45 then return nil end -- '-'
      at = at + 1
    end
    local high, low = NIBBLE[byte(uuid, at)], NIBBLE[byte(uuid, at + 1)]
    if not (high and low) then return nil end
    packed[i] = high * 16 + low
    at = at + 2
  end
  return sub(ngx.encode_base64(ffi.string(packed, 16)), 1, 22)
end

local function checksum(text)
  local rest, digits = ngx.crc32_long(text), {}
  for i = 6, 1, -1 do
    local digit = rest % 62
    digits[i] = sub(ALPHABET, digit + 1, digit + 1)
    rest = (rest - digit) / 62
  end
  return table.concat(digits)
end

local digest = ffi.new('unsigned char[32]')
local function parse(key)
  if #key ~= 66 or sub(key, 1, 8) ~= 'lv_live_' or not key:match('^[%w_]+$') then return nil end
  if checksum(sub(key, 1, 60)) ~= sub(key, 61) then return nil end
  ffi.C.SHA256(key, #key, digest)
  local hash, tag = hex(ffi.string(digest, 32)), sub(key, 9, 30)
  local owner = prefix .. '{' .. tag .. '}'
  return { owner = owner, active = owner .. 'k' .. hash, by_key = owner .. 'q' .. hash, all = owner .. 'q' }
end

local function refuse(status, code)
  ngx.status = status
  ngx.header['Cache-Control'] = 'no-store'
  ngx.header['X-Request-Id'] = ngx.var.http_x_request_id or ngx.var.request_id
  ngx.print('{"error": "', code, '", "status": ', status, '}')
end

local function caller()
  local sent = ngx.var.http_authorization
  if not sent then return nil, 'missing_api_key' end
  local known = remembered:get(sent)
  if known then return known end
  local scheme, key = sent:match('^(%S+) +(%S+)$')
  if not scheme or scheme:lower() ~= 'bearer' then return nil, 'missing_api_key' end
  known = parse(key)
  if not known then return nil, 'invalid_api_key' end
  remembered:set(sent, known)
  return known
end

local LIMITS = '\100\0\0\0' .. '\10\0\0\0' .. '\44\1\0\0' .. '\10\0\0\0' -- 100 in 10 s and 300 in 10 s

local function ask(who, document)
  local connection = redis:new()
  local connected, failure = connection:connect('127.0.0.1', redis_port)
  if not connected then return nil, failure end
  local reply
  if document then
    reply, failure = connection:evalsha(sha, 5, who.active, who.owner, who.by_key, who.all, document,
      LIMITS, ngx.ctx.tag)
  else
    reply, failure = connection:evalsha(sha, 4, who.active, who.owner, who.by_key, who.all, LIMITS)
  end
  connection:set_keepalive(IDLE_MS, CONNECTIONS)
  return reply, failure
end

local function seconds(microseconds) return ceil(microseconds / 1000000) end

-- Returns how many requests are left, in how many microseconds all of them are, and in how many there is one more.
local function bucket(quota, window, full)
  local full_in, interval = tonumber(full), ceil(window * 1000000 / quota)
  return quota - ceil(full_in / interval), full_in, full_in - (quota - 1) * interval
end

local function set_limit_headers(headers, head)
  local quota, left, full, wait = head.quota, bucket(head.quota, head.window, head.full)
  local key_left, key_full, key_wait = bucket(head.key_quota, head.key_window, head.key_full)
  headers['RateLimit-Policy'] = '"key";q=' .. head.key_quota .. ';w=' .. head.key_window
    .. ', "organization";q=' .. quota .. ';w=' .. head.window
  headers['RateLimit'] = '"key";r=' .. key_left .. ';t=' .. seconds(key_full)
    .. ', "organization";r=' .. left .. ';t=' .. seconds(full)
  if key_left <= left then quota, left, full = head.key_quota, key_left, key_full end
  headers['X-RateLimit-Limit'] = quota
  headers['X-RateLimit-Remaining'] = left
  headers['X-RateLimit-Reset'] = seconds(tonumber(head.now) + full)
  return math.max(wait, key_wait)
end

local CODES = { [400] = 'invalid_id', [401] = 'invalid_api_key', [403] = 'api_access_disabled', [404] = 'not_found',
  [503] = 'service_unavailable' }

return function(kind, body_at)
  local who, failure = caller()
  if not who then return refuse(401, failure) end
  local id = short_id(ngx.var.uri:match('[^/]+$') or '')
  local wanted = ngx.var.http_if_none_match
  ngx.ctx.tag = wanted and (wanted:gsub('^W/"(%x+)"$', '%1'):gsub('%x%x', function(digits)
    return string.char(tonumber(digits, 16))
  end)) or ''
  local reply = ask(who, id and who.owner .. generation .. kind .. id)
  if not reply then return refuse(503, 'service_unavailable') end
  if type(reply) == 'number' then return refuse(reply, CODES[reply]) end
  local head, value, headers = ffi.cast('const head *', reply[1]), reply[2], ngx.header
  local status, wait = head.status, set_limit_headers(headers, head)
  if status == 429 then
    headers['Retry-After'] = math.max(1, seconds(wait))
    return refuse(429, 'rate_limit_exceeded')
  end
  if CODES[status] then return refuse(status, CODES[status]) end
  headers['ETag'] = 'W/"' .. hex(sub(value, 23, 34)) .. '"'
  headers['Cache-Control'] = 'private, no-cache'
  headers['X-Request-Id'] = ngx.var.http_x_request_id or ngx.var.request_id
  if status == 304 then return ngx.exit(304) end
  headers['Content-Length'] = #value - body_at
  ngx.print(sub(value, body_at + 1))
end
