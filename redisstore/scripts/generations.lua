-- Reads the generations of tags, and makes those that are not there.
--
-- KEYS[1] epoch   KEYS[2] and on: generations
-- ARGV[1] how long they must last at least, ms
-- ARGV[2] how long they are made to last where they would not, ms
-- ARGV[3] the generation that lasts for ever
--
-- Returns the generations, in decimal.
--
-- Two loops, since a read arms all declared keys on Redis 7.0: first all are made, then
-- the connection is armed on all of them, by PTTL. A PEXPIRE is told to all who are armed,
-- so it comes seldom: each time it makes a key last twice as long as it must.

--include numbers

local generations, present = {}, nil
for i = 2, #KEYS do
  local n = number(KEYS[i])
  if not n then
    present = present or epoch(KEYS[1])
    n = present
    if KEYS[i] == ARGV[3] then
      redis.call('SET', KEYS[i], n)
    else
      redis.call('SET', KEYS[i], n, 'PX', ARGV[2])
    end
  end
  generations[i - 1] = n
end
for i = 2, #KEYS do
  local ms = redis.call('PTTL', KEYS[i])
  if ms >= 0 and ms < tonumber(ARGV[1]) then
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
    redis.call('PTTL', KEYS[i])
  end
end
return generations
