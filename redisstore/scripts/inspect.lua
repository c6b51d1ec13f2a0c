-- Shows what lies under a key, and changes nothing.
--
-- KEYS[1] value   KEYS[2] lease
--
-- Returns {value, type, ms, lease, ms, clock}: the value's bytes, or nil with the type of
-- what lies there, "none" for nothing; how long it lasts as PTTL says it; what the
-- lease's key holds, nil if that is no string, and how long; the server's clock in
-- microseconds, "" where TIME may not be called.

local value, kind = redis.pcall('GET', KEYS[1]), 'string'
if not value then
  kind = 'none'
elseif type(value) == 'table' then -- an error: of a foreign type
  value, kind = false, redis.pcall('TYPE', KEYS[1]).ok or 'of another type'
end
local lease = redis.pcall('GET', KEYS[2])
if type(lease) ~= 'string' then
  lease = false
end
local clock = redis.pcall('TIME')
if clock.err then
  clock = ''
else
  clock = clock[1] .. string.rep('0', 6 - #clock[2]) .. clock[2]
end
return {value, kind, redis.call('PTTL', KEYS[1]), lease, redis.call('PTTL', KEYS[2]), clock}
