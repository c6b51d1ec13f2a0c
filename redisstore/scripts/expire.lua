-- Makes the value stale from now on and ends every lease and failure record of its
-- key. A value without a soft expiry is removed.
--
-- KEYS[1] value   KEYS[2] lease
-- ARGV[1] now, as the 8 bytes of a soft expiry
-- ARGV[2] where the soft expiry lies in a stored value
-- ARGV[3] how every stored value with a soft expiry begins
-- ARGV[4] length of the header of a stored value
--
-- Returns 1.
--
-- The value is written even where that changes nothing, so that whoever has read
-- it hears that a load which it may join is void. The lease goes first: see
-- invalidate. SETRANGE leaves the TTL as it is.
--
-- A tracking connection gets exactly one push for the value: the EXISTS before the
-- write arms it, the write uses that up, and the EXISTS at the end arms it for the
-- next change by anybody.

redis.call('EXISTS', KEYS[1])
redis.call('DEL', KEYS[2])
local length, offset = tonumber(ARGV[4]), tonumber(ARGV[2])
local head = redis.pcall('GETRANGE', KEYS[1], 0, length - 1)
if type(head) == 'string' and #head == length and string.sub(head, 1, #ARGV[3]) == ARGV[3] then
  local expiry = string.sub(head, offset + 1, offset + 8)
  for i = 1, 8 do -- by hand: Lua compares strings in the server's locale
    local a, b = string.byte(expiry, i), string.byte(ARGV[1], i)
    if a ~= b then
      if a > b then
        expiry = ARGV[1]
      end
      break
    end
  end
  redis.call('SETRANGE', KEYS[1], offset, expiry)
else
  redis.call('SET', KEYS[1], '')
  redis.call('DEL', KEYS[1])
end
redis.call('EXISTS', KEYS[1])
return 1
