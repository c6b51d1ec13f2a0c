-- Stores a value and ends every lease and failure record of its key.
--
-- KEYS[1] value   KEYS[2] lease
-- ARGV[1] the value
-- ARGV[2] how long it lasts, ms; 0: it is gone at once
-- ARGV[3] its row version, 8 bytes, or "" if it has none
-- ARGV[4] where the row version lies in a stored value
-- ARGV[5] how every stored value with a row version begins
-- ARGV[6] length of the header of a stored value
--
-- Returns 1 stored, 0 refused: the stored value is of a newer row version. The
-- server's error, if it refuses the write (out of memory): then the old value is
-- removed, since the caller knows better than it.
--
-- A tracking connection gets exactly one push for the value, stored or refused: the
-- EXISTS before the write arms it, the write uses that up, and the EXISTS at the end
-- arms it for the next change by anybody.

--include newer

local result = 1
redis.call('EXISTS', KEYS[1])
if newer(KEYS[1], ARGV[3], tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])) then
  redis.call('DEL', KEYS[2])
  -- Nobody may join a load that this call has voided: whoever has read the value
  -- hears of it through a write that changes nothing.
  redis.call('SETRANGE', KEYS[1], 0, ARGV[5])
  result = 0
elseif ARGV[2] ~= '0' then
  local reply = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  redis.call('DEL', KEYS[2])
  if reply.err then
    redis.call('DEL', KEYS[1])
    return reply
  end
else
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[1], '')
  redis.call('DEL', KEYS[1])
end
redis.call('EXISTS', KEYS[1])
return result
