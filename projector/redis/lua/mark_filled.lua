-- Notes that a shard holds every record of some generations, up to the positions of its copy of the control record.
-- KEYS  1 copy
-- ARGV  1 the incarnation that the copy must have; then the generations
-- Returns 1, or 0 if the shard was emptied meanwhile

local incarnation, filled = unpack(redis.call('HMGET', KEYS[1], 'incarnation', 'filled'))
if incarnation ~= ARGV[1] then return 0 end
for i = 2, #ARGV do
  if not string.find(',' .. filled .. ',', ',' .. ARGV[i] .. ',', 1, true) then
    filled = filled == '' and ARGV[i] or filled .. ',' .. ARGV[i]
  end
end
redis.call('HSET', KEYS[1], 'filled', filled)
return 1
