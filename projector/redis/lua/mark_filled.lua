-- Notes that a shard holds every record of some generations, up to the positions of its copy of the control record.
-- Requires  the copy that was read (stamp, incarnation), and positions that have reached the given offsets; of a
--           rebuild, also that the copy was created before the generation was added: otherwise the lines fill it
-- KEYS  1 copy  2 positions: of the live lines the same key, of a rebuild another one
-- ARGV  1 the stamp and 2 the incarnation that the copy must have  3 the generations, separated by commas; then, for
--       each partition: field, the offset that its position must have reached
-- Returns 1, or 0 if the copy is another one by now, or the shard does not hold everything

local stamp, incarnation, filling, filled =
  unpack(redis.call('HMGET', KEYS[1], 'stamp', 'incarnation', 'filling', 'filled'))
if stamp ~= ARGV[1] or incarnation ~= ARGV[2] then return 0 end
local function contains(list, generation) return string.find(',' .. list .. ',', ',' .. generation .. ',', 1, true) end

for i = 4, #ARGV, 2 do
  local position = redis.call('HGET', KEYS[2], ARGV[i])
  if (position and tonumber(string.match(position, '^%d+')) or 0) < tonumber(ARGV[i + 1]) then return 0 end
end
for generation in string.gmatch(ARGV[3], '[^,]+') do
  if KEYS[2] ~= KEYS[1] and contains(filling, generation) then return 0 end
  if not contains(filled, generation) then filled = filled == '' and generation or filled .. ',' .. generation end
end
redis.call('HSET', KEYS[1], 'filled', filled)
return 1
