-- Changes the part of the control record that is the same in all copies, in one copy.
-- Requires  the stamp that was read; unknown generations that may have keys in the shard prevent it
-- KEYS  1 copy
-- ARGV  1 the stamp that the copy must have  2 the new live generation  3 the generations that are written then, separated by
--       commas
--       4 the generations that may have keys then  5 number of values that follow for the shared fields; then these
--       fields and values; then fields and values of a new copy, for a shard that does not hold the new live generation
-- Returns 1; 0 if the copy is missing or has another stamp; or, if the shard may still hold keys of generations that are
--         unknown from then on, these generations as a text

local function contains(list, number) return string.find(',' .. list .. ',', ',' .. number .. ',', 1, true) end

-- Returns the generations in `list` for which `keep` returns true.
local function filter(list, keep)
  local kept = {}
  for number in string.gmatch(list, '[^,]+') do
    if keep(number) then kept[#kept + 1] = number end
  end
  return table.concat(kept, ',')
end

local stamp, known, swept, filling, filled =
  unpack(redis.call('HMGET', KEYS[1], 'stamp', 'known', 'swept', 'filling', 'filled'))
if stamp ~= ARGV[1] then return 0 end

local unswept = filter(known, function(number) return not contains(ARGV[4], number) and not contains(swept, number) end)
if unswept ~= '' then return unswept end

local last = 5 + tonumber(ARGV[5])
if contains(filled, ARGV[2]) or contains(filling, ARGV[2]) then
  local function is_written(number) return contains(ARGV[3], number) end
  redis.call('HSET', KEYS[1], 'filling', filter(filling, is_written), 'filled', filter(filled, is_written))
else
  -- The shard went back to a time before the generation was filled: it is filled again from the beginning.
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], unpack(ARGV, last + 1))
end
redis.call('HSET', KEYS[1], 'swept', filter(swept, function(number) return contains(ARGV[4], number) end))
redis.call('HSET', KEYS[1], unpack(ARGV, 6, last))
return 1
