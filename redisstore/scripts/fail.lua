-- Ends the lease and leaves the record of a failed load in its place.
--
-- KEYS[1] lease
-- ARGV[1] "t" .. token of the caller
-- ARGV[2] the record
-- ARGV[3] how long it lasts, ms; 0: no record is left
--
-- Returns 1 done, 0 refused: the lease is not the caller's.

if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
if ARGV[3] ~= '0' then
  redis.call('SET', KEYS[1], 'f' .. ARGV[2], 'PX', ARGV[3])
else
  redis.call('DEL', KEYS[1])
end
return 1
