-- Looks after requests that wait until a document changes: reads its ETag, and whether their key is still served.
-- Requires  nothing: it only reads
-- KEYS  keys..., organizations..., documents...
--       the records of the keys, the organization of each of them, and the documents for which requests with the first
--       key wait, those of the second one, and so on
-- ARGV  counts...
--       the number of documents for each key
-- Returns one string: for each document 12 bytes, which are its ETag, NO_ETAG if there is no document, or NOT_SERVED if
--         serve.lua would refuse the key or the organization

local KEYS, call, byte, sub, unpack_bytes = KEYS, redis.call, string.byte, string.sub, struct.unpack
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]

local function refusal_of(key, organization, organization_name)
  -- Here  key_and_access
end

local count = #ARGV
local records = call('MGET', unpack(KEYS, 1, count + count))
local etags, last = {}, count + count
for i = 1, count do
  local refusal = refusal_of(records[i], records[count + i], KEYS[count + i])
  local first = last + 1
  last = last + ARGV[i]
  for place = first, last do
    -- The marker of a deleted document ends before its ETag would begin.
    local etag = refusal and NOT_SERVED or call('GETRANGE', KEYS[place], ETAG_AT, ETAG_LAST)
    if etag == '' then etag = NO_ETAG end
    etags[#etags + 1] = etag
  end
end
return table.concat(etags)
