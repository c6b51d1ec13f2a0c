-- Raises the epoch and makes it the generation of tags.
--
-- KEYS[1] epoch   KEYS[2] and on: generations
-- ARGV[1] how long they are made to last, ms
-- ARGV[2] the generation that lasts for ever
--
-- Returns 1.
--
-- The new epoch is the clock, or one more than the old one if that is ahead of it: so it
-- is also above those that a failover has lost.
--
-- A tracking connection gets exactly one push for each generation: the EXISTS before the
-- write arms it, and the write uses that up.

--include numbers

local old, new = number(KEYS[1]), clock()
if old and tonumber(old) >= tonumber(new) then
  new = string.format('%.0f', tonumber(old) + 1)
end
redis.call('SET', KEYS[1], new)
for i = 2, #KEYS do
  redis.call('EXISTS', KEYS[i])
  if KEYS[i] == ARGV[2] then
    redis.call('SET', KEYS[i], new)
  else
    redis.call('SET', KEYS[i], new, 'PX', ARGV[1])
  end
end
return 1
