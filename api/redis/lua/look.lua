-- Looks after requests that wait until a document changes: reads its ETag, and whether their key is still served.
-- Requires  nothing: it only reads
-- KEYS  keys..., organizations..., documents...
--       for each request the record of its key, its organization, and the document
-- Returns one string: for each request 12 bytes, which are the ETag, NO_ETAG if there is no document, or NOT_SERVED if
--         serve.lua would refuse the key or the organization

local KEYS, call, byte, sub, unpack_bytes = KEYS, redis.call, string.byte, string.sub, struct.unpack
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local count = #KEYS / 3

local function refusal_of(key, organization, organization_name)
  -- Here  admission
end

local etags, refusal = {}, nil
for i = 1, count do
  if KEYS[i] ~= KEYS[i - 1] then -- usually several requests of a key wait
    local records = call('MGET', KEYS[i], KEYS[count + i])
    refusal = refusal_of(records[1], records[2], KEYS[count + i])
  end
  if refusal then
    etags[i] = NOT_SERVED
  else
    local value = call('GETRANGE', KEYS[count + count + i], '0', ETAG_LAST)
    etags[i] = byte(value) == STATE_LIVE and sub(value, ETAG) or NO_ETAG
  end
end
return table.concat(etags)
