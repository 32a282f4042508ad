-- Takes back the positions of partitions whose topic has lost its history.
-- Requires  a position that is above what is right, or that of another topic; it claims nothing, the rest is read again. Also
--           the replication epoch and the fence of the session
-- KEYS  1 positions
-- ARGV  for each partition: field, the id of the topic (`-` if it is not known), the highest offset that is right, and
--       what takes the place of a higher position ('' for none). A position of a topic with another id is deleted
-- Returns how many were taken back

local taken = 0
for i = 1, #ARGV, 4 do
  local field, id, highest, to = unpack(ARGV, i, i + 3)
  local value = redis.call('HGET', KEYS[1], field)
  local offset, stored_id = string.match(value or '', '^(%d+) .* (%S+)$')
  if offset then
    if stored_id ~= id and stored_id ~= '-' and id ~= '-' then
      taken = taken + redis.call('HDEL', KEYS[1], field)
    elseif tonumber(offset) > tonumber(highest) then
      taken = taken + 1
      if to == '' then redis.call('HDEL', KEYS[1], field) else redis.call('HSET', KEYS[1], field, to) end
    end
  end
end
return taken
