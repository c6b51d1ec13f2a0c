-- Stores a loaded value and ends the lease, if the lease is the caller's.
--
-- KEYS[1] value   KEYS[2] lease
-- ARGV[1] claim of the caller
-- ARGV[2] the value
-- ARGV[3] how long it lasts, ms; 0: it is gone at once
-- ARGV[4] its row version, 8 bytes, or "" if it has none
-- ARGV[5] where the row version lies in a stored value
-- ARGV[6] how every stored value with a row version begins
-- ARGV[7] length of the header of a stored value
--
-- Returns 1 stored, 0 refused: the lease is not the caller's, or the stored value
-- is of a newer row version (then the lease ends all the same).
--
-- The value is written before the lease is deleted: the first write is the one
-- that a full server refuses, and then nothing has been changed.
-- A tracking connection gets exactly one push for the value if it was stored, and
-- none otherwise: the EXISTS before the write arms it, the write uses that up, and the
-- EXISTS at the end arms it for the next change by anybody.

--include newer

local lease = redis.pcall('GET', KEYS[2])
if type(lease) ~= 'string' or string.sub(lease, 1, #ARGV[1]) ~= ARGV[1] then
  return 0
end
if newer(KEYS[1], ARGV[4], tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])) then
  redis.call('DEL', KEYS[2])
  return 0
end
redis.call('EXISTS', KEYS[1])
if ARGV[3] ~= '0' then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  redis.call('DEL', KEYS[2])
else
  redis.call('DEL', KEYS[2])
  redis.call('SET', KEYS[1], '')
  redis.call('DEL', KEYS[1])
end
redis.call('EXISTS', KEYS[1])
return 1
