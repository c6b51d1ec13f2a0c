-- Ends the lease: the next caller wins at once.
--
-- KEYS[1] lease
-- ARGV[1] claim of the caller
--
-- Returns 1 done, 0 refused: the lease is not the caller's.

--include behind

local lease = redis.pcall('GET', KEYS[1])
if type(lease) ~= 'string' or string.sub(lease, 1, #ARGV[1]) ~= ARGV[1] then
  return 0
end
-- To release is no success: the record of the failure before this lease stays for as
-- long as it had left when the lease was won. A full server forgets it.
local left, record = behind(lease)
if not left or redis.pcall('SET', KEYS[1], 'f' .. left .. ':' .. record, 'PX', left).err then
  redis.call('DEL', KEYS[1])
end
return 1
