-- Ends the lease and leaves the record of a failed load in its place: it blocks the
-- key for a while, and is remembered for as long again.
--
-- KEYS[1] lease
-- ARGV[1] claim of the caller
-- ARGV[2] the record
-- ARGV[3] how long it blocks, and is remembered after that, ms; 0: no record is left
-- ARGV[4] both together
--
-- Returns 1 done, 0 refused: the lease is not the caller's.

local lease = redis.pcall('GET', KEYS[1])
if type(lease) ~= 'string' or string.sub(lease, 1, #ARGV[1]) ~= ARGV[1] then
  return 0
end
if ARGV[3] ~= '0' then
  redis.call('SET', KEYS[1], 'f' .. ARGV[3] .. ':' .. ARGV[2], 'PX', ARGV[4])
else
  redis.call('DEL', KEYS[1])
end
return 1
