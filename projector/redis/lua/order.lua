-- The order of the records of an entity in its partition. Only the last one outlives compaction, so it must be the newest.

-- Returns what an event is that is not newer than the stored one, and that stands in `given` from the byte `at` on
-- (default: the first): nil, which is usual, because its record was read before; or, if its record comes behind that of
-- the stored event in the same partition, OLDER, REUSED, or REPEATED. REPEATED is certain only of deletes: of live ones,
-- the caller compares what they say.
local function order_of(stored, given, at)
  local state, version, offset, partition = unpack_bytes('<BI7I6I2', stored)
  local new_state, new_version, new_offset, new_partition = unpack_bytes('<BI7I6I2', given, at)
  -- A partition has the history of its topic in its highest bits. A tombstone has no version.
  if new_offset <= offset or new_partition ~= partition or new_version == 0 or new_version > version then return nil end
  if new_version < version then return OLDER end
  if (new_state == STATE_LIVE) == (state == STATE_LIVE) then return REPEATED end -- an event and a tombstone delete alike
  return REUSED
end
