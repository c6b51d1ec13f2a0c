-- Makes the lease last longer.
--
-- KEYS[1] lease
-- ARGV[1] claim of the caller
-- ARGV[2] how long it lasts from now, ms
--
-- Returns 1 done, 0 refused: the lease is not the caller's.
--
-- Those who wait for the lease are woken by it, and ask again.

local lease = redis.pcall('GET', KEYS[1])
if type(lease) ~= 'string' or string.sub(lease, 1, #ARGV[1]) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
