-- Which event does each of these documents show? A record that is shown already need not be decoded again.
-- KEYS  for each record, for each generation: document; for contacts then the contact's leads
-- ARGV  1 number of generations  2 '1' for contacts, else ''
-- Returns for each record the 22 bytes that begin its document (its head), one after the other; zeros where there is
--         none, where generations differ, or where leads of the contact show another summary

local width = ARGV[2] == '1' and 2 or 1
local heads = {}
for first = 1, #KEYS, width * tonumber(ARGV[1]) do
  local head
  for i = first, first + width * tonumber(ARGV[1]) - 1, width do
    local stored = redis.call('GETRANGE', KEYS[i], 0, CONTACT_BODY - 1)
    local found = string.sub(stored, 1, HEAD)
    if #found < HEAD or (head and head ~= found) then head = NOT_SHOWN else head = found end
    if width == 2 and head ~= NOT_SHOWN then
      local pending = {}
      collect_pending(stored, KEYS[i + 1], pending)
      if #pending > 0 then head = NOT_SHOWN end
    end
  end
  heads[#heads + 1] = head
end
return table.concat(heads)
