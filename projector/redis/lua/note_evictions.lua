-- Compares how many keys this server has evicted with what is stored beside a copy of the control record.
-- Requires  no eviction of what lasts since the stored count, or the count whose break was noted
-- Uses  evicted
-- KEYS  evictions
--       evictions: run and count of the server; `create_copy` begins it
-- ARGV  noted
--       noted: what this script has returned, '' for nothing
-- Returns what has to be noted: the run of the server and its count; '' if nothing was evicted

local run, count = evicted()
local found = run .. ' ' .. count
local stored = redis.call('GET', KEYS.evictions)
if stored == found then return '' end

-- A server that was started again counts from 0. Without a count, it is not known when the keys were evicted: perhaps
-- while the shard was being filled.
local stored_run, stored_count = string.match(stored or '', '^(%w+) (%d+)$')
local grown = tonumber(count) > (stored_run == run and tonumber(stored_count) or 0)
-- The policies volatile-* evict only what expires, and no document does.
if string.find(redis.call('INFO', 'memory'), 'maxmemory_policy:volatile-', 1, true) then grown = false end
if grown and ARGV.noted ~= found then return found end
redis.call('SET', KEYS.evictions, found)
return ''
