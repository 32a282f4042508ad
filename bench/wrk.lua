-- For wrk: sends the requests of a file in turn, and prints what it found as one line of JSON.
-- REQUESTS (environment)  a file of whole HTTP requests, each ended by a byte 0

local requests, at = {}, 0
local file = io.open(os.getenv('REQUESTS'), 'rb')
for request in file:read('*a'):gmatch('([^%z]+)%z') do requests[#requests + 1] = request end
file:close()

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '\n{"answered":%d,"failed":%d,"seconds":%.6f,"p50":%.6f,"p99":%.6f,"p999":%.6f}\n',
    summary.requests, errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6, latency:percentile(99.9) / 1e6))
end
