-- Stores up to which moment everything that Kafka held is visible in a shard: of all topics for the API (`Data-As-Of`),
-- and of each topic, durably, so that a pause in which Kafka may have removed deletions is noticed.
-- Requires  positions that have reached the given offsets, of topics with the given ids; for `Data-As-Of` also a
--           complete shard. A later moment stays unless it is in the future, and that of a topic that was not complete
--           for too long until its break was noted
-- KEYS  copy, as_of, complete
--       complete: the moments of the topics. Before they are stored for the first time, it has `begun`, the moment at
--       which the copy was created
-- ARGV  moment, lasts, apart, hidden, number, count, topics(topic, kept, first, noted, own)..., ends(partition, offset, id)...
--       moment: in ms since 1970. lasts: ms until `Data-As-Of` expires; without a sample 0, and no moment is stored.
--       apart: how far the clocks of two machines may be apart, in ms. hidden: '1' if nothing is known, because of a
--       break. number, count: of topics, and of the ends at the moment; those of later samples follow. kept: for how many
--       ms Kafka keeps deletions. first: the moment of a topic that has none here, 0 for none; the earlier one of it and
--       `begun`, and without both, now. noted: the moment whose break was noted, 0 for none. own: the moment of a later
--       sample of this topic alone, 0 for none. partition: the field of its position. offset: its end, read after the
--       moment. id: that of the topic, `-` if the brokers do not say it
-- Returns the time of Redis in ms since 1970; the moment that is stored, 0 for none; a list of the moments of the
--         topics; and a list of each topic that was not complete for longer than deletions are kept, and its moment

local CLOCKS_MS = 5000 -- a moment that is so far ahead was not stored by this clock
local AT_ONCE = 1000 -- positions that are read at once: Lua can unpack some thousand

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ends = FIRST.topics + SIZE.topics * ARGV.number
local later = ends + SIZE.ends * ARGV.count

-- Returns the topics whose positions have not reached these ends, and whether there are any.
local function behind(from, to)
  local topics, any = {}, false
  for first = from, to, SIZE.ends * AT_ONCE do
    local last, fields = math.min(to, first + SIZE.ends * AT_ONCE - 1), {}
    for i = first, last, SIZE.ends do fields[#fields + 1] = ARGV[i].partition end
    local positions = redis.call('HMGET', KEYS.copy, unpack(fields))
    for i = first, last, SIZE.ends do
      local position = positions[(i - first) / SIZE.ends + 1]
      local offset, id = string.match(position or '0 -', '^(%d+) .-(%S+)$')
      if tonumber(offset) < tonumber(ARGV[i].offset) or id ~= ARGV[i].id then
        topics[string.match(ARGV[i].partition, '^(.*):')], any = true, true
      end
    end
  end
  return topics, any
end
local late, is_late = behind(ends, later - 1)
local late_for_later = behind(later, #ARGV)

-- Returns the earlier one of two moments, of which 0 is none.
local function earlier(a, b) return (a == 0 or b == 0) and math.max(a, b) or math.min(a, b) end

local moments, missed, moved, fields = {}, {}, {}, { 'begun' }
for i = FIRST.topics, ends - 1, SIZE.topics do fields[#fields + 1] = ARGV[i].topic end
local of_topics = redis.call('HMGET', KEYS.complete, unpack(fields))
local begun = tonumber(of_topics[1] or 0)
for i = FIRST.topics, ends - 1, SIZE.topics do
  local topic, stored = ARGV[i].topic, of_topics[(i - FIRST.topics) / SIZE.topics + 2]
  local before, sampled = tonumber(stored or earlier(tonumber(ARGV[i].first), begun)), tonumber(ARGV[i].own)
  local after = (before == 0 or before == tonumber(ARGV[i].noted)) and now or before
  if now - after > tonumber(ARGV[i].kept) or after - now > CLOCKS_MS then
    missed[#missed + 1], missed[#missed + 2] = topic, after
  elseif sampled > 0 and not late_for_later[topic] then
    after = math.max(after, sampled)
  elseif sampled == 0 and ARGV.lasts ~= '0' and not late[topic] then
    after = math.max(after, tonumber(ARGV.moment))
  end
  moments[#moments + 1] = after
  if not stored or after ~= before then moved[#moved + 1], moved[#moved + 2] = topic, string.format('%d', after) end
end
if #moved > 0 then redis.call('HSET', KEYS.complete, unpack(moved)) end
-- A topic that is new later begins when it is new.
if begun > 0 and #moments > 0 then redis.call('HDEL', KEYS.complete, 'begun') end

local moment, live, filled = 0, unpack(redis.call('HMGET', KEYS.copy, 'live', 'filled'))
local holds = live and filled and string.find(',' .. filled .. ',', ',' .. live .. ',', 1, true)
if ARGV.hidden == '1' or (ARGV.lasts ~= '0' and not holds) then
  redis.call('DEL', KEYS.as_of)
elseif ARGV.lasts ~= '0' then
  moment = is_late and 0 or tonumber(ARGV.moment)
  if moment > now then moment = 0 end
  local before = tonumber(redis.call('GET', KEYS.as_of) or 0)
  if before > now + ARGV.apart then
    -- It is none: the clock was wrong when it was stored.
    redis.call('DEL', KEYS.as_of)
    before = 0
  end
  -- The sample is new, even if its moment is not reached: what is stored stays true, and lasts. One that is a little
  -- ahead, because the clock went back or is that of another server by now, stays until it is past, and nobody tells it.
  moment = math.max(moment, before)
  if moment > 0 and before <= now then
    redis.call('SET', KEYS.as_of, string.format('%d', moment), 'PX', ARGV.lasts)
  end
end
return { now, moment, moments, missed }
