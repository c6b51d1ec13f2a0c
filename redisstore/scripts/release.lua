-- Ends the lease and leaves nothing: the next caller wins at once.
--
-- KEYS[1] lease
-- ARGV[1] "t" .. token of the caller
--
-- Returns 1 done, 0 refused: the lease is not the caller's.

if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
return 1
