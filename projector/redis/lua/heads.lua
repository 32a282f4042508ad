-- Functions that read and write the layout of values in Redis (schemas/layouts.py). The loader puts this file before
-- every script of the projector, then the files that the script uses, and literals in place of the constants of that
-- module: a slice there is NAME and NAME_END here, the first and the last byte, counted from 1. NAME_AT and
-- NAME_LAST are the same as SETRANGE and GETRANGE count them. NAME_TEXT is a number as text, and NAME_BYTE the number
-- of a single byte. Names of keys and arguments are those of the script's header (runtime/redis/scripts.py):
-- with FIRST before a name, the place where its rows begin, and with SIZE, how many arguments each row has.
--
-- What costs most in a script are calls of Redis, functions, and strings: each argument, slice and concatenation makes
-- one. Numbers that are arguments of Redis are written as text, because it formats a number with %.17g.

-- A local function is found faster than one of a library.
local call, pack, unpack_bytes = redis.call, struct.pack, struct.unpack
local sub, byte, format = string.sub, string.byte, string.format

local function is_live(value) return byte(value, 1) == STATE_LIVE end

-- Returns whether the event whose head is in `given`, from the byte `at` on (default: the first), may replace what is
-- stored. The higher version wins. A tombstone has no version (0), so it must come after the stored event: at a higher
-- offset, or at a later time of Kafka if the two came from different partitions (after partitions were added). An event
-- that replaces a tombstone must come after it as well. At the same time the tombstone wins, whichever is read first.
-- With `overwrite_equal`, an event with the stored version counts as newer if it leaves the entity in the stored state
-- (live, or deleted by an event), to repair a value in place. A tombstone has no version, so none repairs it.
local function is_newer(stored, given, overwrite_equal, at)
  if #stored < HEAD then return true end -- nothing is stored, or a value that Leadview did not write
  -- The first two fields of HEAD_FORMAT, the state as a number: usually they decide, and the others are not read.
  local state, version = unpack_bytes('<BI7', stored)
  local new_state, new_version = unpack_bytes('<BI7', given, at)
  if new_version == 0 or state == STATE_TOMBSTONE then
    -- A partition has the history of its topic in its highest bits, so those of different histories are not equal.
    local _, _, offset, partition, time = unpack_bytes(HEAD_FORMAT, stored)
    local _, _, new_offset, new_partition, new_time = unpack_bytes(HEAD_FORMAT, given, at)
    local after
    if new_partition == partition then
      after = new_offset > offset
    else
      after = new_time > time or (new_version == 0 and new_time == time)
    end
    if not after or new_version == 0 then return after end
  end
  return new_version > version or (overwrite_equal and new_version == version and new_state == state)
end

-- Returns the marker that replaces a deleted entity. A tombstone keeps the stored version. Two tombstones of the same
-- time in different partitions are one that is in none: what comes after it has a later time, whatever its partition is.
local function marker(stored, head)
  if #stored < HEAD or byte(head, 1) ~= STATE_TOMBSTONE then return head end
  local place = sub(head, VERSION_END + 1, HEAD)
  if byte(stored, 1) == STATE_TOMBSTONE and sub(stored, RECORD_TIME, RECORD_TIME_END) == sub(head, RECORD_TIME, RECORD_TIME_END)
    and sub(stored, PARTITION, PARTITION_END) ~= sub(head, PARTITION, PARTITION_END) then
    place = NOWHERE .. sub(head, RECORD_TIME, RECORD_TIME_END)
  end
  return 'T' .. sub(stored, VERSION, VERSION_END) .. place
end

local function organization_is_deleted(name)
  local value = call('GET', name) -- the value is short, and GET is faster than GETRANGE
  return value and not is_live(value)
end
