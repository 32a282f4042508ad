-- Reads the ETags of documents, for requests that wait until one of them changes.
-- Requires  nothing: it only reads
-- KEYS  documents...
-- Returns one string: for each document the 12 bytes of its ETag, or NO_ETAG if there is no document

local etags = {}
for i = FIRST.documents, #KEYS do
  local value = redis.call('GETRANGE', KEYS[i], '0', ETAG_LAST)
  etags[i] = string.byte(value) == STATE_LIVE and string.sub(value, ETAG) or NO_ETAG
end
return table.concat(etags)
