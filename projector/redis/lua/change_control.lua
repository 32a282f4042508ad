-- Changes the part of the control record that is the same in all copies, in one copy.
-- Requires  the stamp that was read; unknown generations that may have keys in the shard prevent it
-- KEYS  copy
-- ARGV  stamp, live, written, known, number, shared(field, value)..., own(field, value)...
--       stamp: the one that the copy must have. live, written, known: the new live generation, those that are written
--       then, and those that may have keys then, separated by commas. number: of shared fields. own: the fields of a
--       new copy, for a shard that does not hold the new live generation
-- Returns 1; 0 if the copy is missing or has another stamp; or, if the shard may still hold keys of generations that
--         are unknown from then on, these generations as a text

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
  unpack(redis.call('HMGET', KEYS.copy, 'stamp', 'known', 'swept', 'filling', 'filled'))
if stamp ~= ARGV.stamp then return 0 end

local unswept = filter(known, function(number)
  return not contains(ARGV.known, number) and not contains(swept, number)
end)
if unswept ~= '' then return unswept end

local own = FIRST.shared + SIZE.shared * ARGV.number
if contains(filled, ARGV.live) or contains(filling, ARGV.live) then
  local function is_written(number) return contains(ARGV.written, number) end
  redis.call('HSET', KEYS.copy, 'filling', filter(filling, is_written), 'filled', filter(filled, is_written))
else
  -- The shard went back to a time before the generation was filled: it is filled again from the beginning.
  redis.call('DEL', KEYS.copy)
  redis.call('HSET', KEYS.copy, unpack(ARGV, own))
end
redis.call('HSET', KEYS.copy, 'swept', filter(swept, function(number) return contains(ARGV.known, number) end))
redis.call('HSET', KEYS.copy, unpack(ARGV, FIRST.shared, own - 1))
return 1
