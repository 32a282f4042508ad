-- Reads which leads of a contact contain another summary than its present one, and than those that are left out. They
-- were present since a fan-out began: its leads show them or a later one, so it ends although its contact changes again.
-- Requires  nothing: it only reads
-- Uses  contact_index, index_repair
-- KEYS  organization, contacts...
--       contacts: for each generation, the contact and the index of its leads
-- ARGV  shown
--       shown: the hashes of the summaries that are left out
-- Returns a list: the hashes of the present summaries, those of all generations behind each other; then the short ids
--         of some of these leads (per generation the first lead, and at least 100 others if there are as many). An
--         empty list if the organization is deleted: then no lead is updated any more

local pending, hashes, shown = {}, '', {}
if organization_is_deleted(KEYS.organization) then return pending end
for at = 1, #ARGV.shown, HASH_BYTES do shown[sub(ARGV.shown, at, at + HASH_BYTES - 1)] = true end
for i = FIRST.contacts, #KEYS, 2 do
  local contact = call('GETRANGE', KEYS[i], 0, CONTACT_BODY - 1)
  hashes = hashes .. select(2, collect_pending(contact, KEYS[i + 1], pending, shown))
end
return { hashes, unpack(pending) }
