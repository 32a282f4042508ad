-- Notes that a shard holds every record of some generations, up to the positions of its copy of the control record.
-- Requires  the copy that was read (stamp, incarnation), and positions that have reached the given offsets; for a
--           rebuild also a copy that is older than the generation
-- KEYS  copy, positions
--       positions: of the live lines the same key as the copy, of a rebuild another one
-- ARGV  stamp, incarnation, generations, needed(partition, offset)...
--       stamp, incarnation: those that the copy must have. generations: separated by commas. partition: the field of
--       its position. offset: what that must have reached
-- Returns 1, or 0 if the copy is another one by now, or the shard does not hold everything

local stamp, incarnation, filling, filled =
  unpack(redis.call('HMGET', KEYS.copy, 'stamp', 'incarnation', 'filling', 'filled'))
if stamp ~= ARGV.stamp or incarnation ~= ARGV.incarnation then return 0 end
local function contains(list, generation) return string.find(',' .. list .. ',', ',' .. generation .. ',', 1, true) end

for i = FIRST.needed, #ARGV, SIZE.needed do
  local position = redis.call('HGET', KEYS.positions, ARGV[i].partition)
  if (position and tonumber(string.match(position, '^%d+')) or 0) < tonumber(ARGV[i].offset) then return 0 end
end
for generation in string.gmatch(ARGV.generations, '[^,]+') do
  if KEYS.positions ~= KEYS.copy and contains(filling, generation) then return 0 end
  if not contains(filled, generation) then filled = filled == '' and generation or filled .. ',' .. generation end
end
redis.call('HSET', KEYS.copy, 'filled', filled)
return 1
