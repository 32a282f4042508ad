-- Reads which event each document was last changed by, so that a record that is already applied is not decoded again.
-- Requires  nothing: it only reads
-- Uses  contact_index, index_repair
-- KEYS  documents...
--       for each record, for each generation: document; for a contact also the index of its leads
-- ARGV  generations, are_contacts
--       generations: how many. are_contacts: '1' or ''
-- Returns one string: for each record the head of its document; zeros if there is no document, if the generations
--         differ, or if leads of the contact contain an old summary

local width = ARGV.are_contacts == '1' and 2 or 1
local size, heads = width * tonumber(ARGV.generations), {}
local last = tostring((width == 2 and CONTACT_BODY or HEAD) - 1)
for first = FIRST.documents, #KEYS, size do
  local head
  for i = first, first + size - 1, width do
    local stored = call('GETRANGE', KEYS[i], '0', last)
    local found = #stored > HEAD and sub(stored, 1, HEAD) or stored
    if #found < HEAD or (head and head ~= found) then head = NO_HEAD else head = found end
    if width == 2 and head ~= NO_HEAD then
      if collect_pending(stored, KEYS[i + 1]) then head = NO_HEAD end
    end
  end
  heads[#heads + 1] = head
end
return table.concat(heads)
