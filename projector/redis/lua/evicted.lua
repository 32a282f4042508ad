-- How many keys a server has evicted.

-- Returns the run of this server, and how many keys it has evicted since its start, both as text.
local function evicted()
  local server, stats = redis.call('INFO', 'server'), redis.call('INFO', 'stats')
  return string.match(server, 'run_id:(%w+)'), string.match(stats, 'evicted_keys:(%d+)')
end
