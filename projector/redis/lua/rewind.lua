-- Takes back the positions of partitions whose topic has lost its history.
-- Requires  a position that is too high or of another topic; replication epoch and fence of the session
-- KEYS  positions
-- ARGV  rewinds(partition, topic_id, highest, to)...
--       partition: the field of its position. topic_id: `-` if it is not known; a position of a topic with another id
--       is deleted. highest: the highest offset that is right. to: takes the place of a higher position ('' for none)
-- Returns how many were taken back

local taken = 0
for i = FIRST.rewinds, #ARGV, SIZE.rewinds do
  local field, id, highest, to = ARGV[i].partition, ARGV[i].topic_id, ARGV[i].highest, ARGV[i].to
  local value = redis.call('HGET', KEYS.positions, field)
  local offset, stored_id = string.match(value or '', '^(%d+) .* (%S+)$')
  if offset then
    if stored_id ~= id and stored_id ~= '-' and id ~= '-' then
      taken = taken + redis.call('HDEL', KEYS.positions, field)
    elseif tonumber(offset) > tonumber(highest) then
      taken = taken + 1
      if to == '' then redis.call('HDEL', KEYS.positions, field) else redis.call('HSET', KEYS.positions, field, to) end
    end
  end
end
return taken
