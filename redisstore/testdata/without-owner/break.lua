-- As it was before leases had an owner, for the tests of a rolling upgrade: owner_test.go.
--
-- Ends a lease that is somebody else's.
--
-- KEYS[1] lease
-- ARGV[1] the holder's token, 16 bytes, or "" for whoever holds it
--
-- Returns 1 done, 0 there is no such lease.
--
-- The record of the failure before the lease stays, as when it is released.

local lease = redis.pcall('GET', KEYS[1])
if type(lease) ~= 'string' or string.sub(lease, 1, 1) ~= 't' or #lease < 21 then
  return 0
end
if redis.call('PTTL', KEYS[1]) < 0 or ARGV[1] ~= '' and string.sub(lease, 2, 17) ~= ARGV[1] then
  return 0
end
local left, record = string.match(string.sub(lease, 22), '^(%d+):(.*)$')
if not left or redis.pcall('SET', KEYS[1], 'f' .. left .. ':' .. record, 'PX', left).err then
  redis.call('DEL', KEYS[1])
end
return 1
