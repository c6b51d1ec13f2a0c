-- number reads a key that holds a number, as the digits that are there. Anything else is
-- as good as lost, and so is what Lua cannot count on from, 2^53 and above.
--
-- GETEX without an option is a GET that Redis takes for a write: it arms no tracking
-- connection, so that making what is not there is no news to the one who makes it; and
-- after it a full server lets the script write. Where writes are refused (its disk is
-- full, too few replicas), what is there can still be read.
local function number(key)
  local n = redis.pcall('GETEX', key)
  if type(n) == 'table' then
    n = redis.pcall('GET', key)
  end
  if type(n) == 'string' and string.find(n, '^[1-9]%d*$') and tonumber(n) < 2 ^ 53 then
    return n
  end
  return nil
end

-- clock is the server's time in microseconds, as digits.
local function clock()
  local t = redis.call('TIME')
  return t[1] .. string.rep('0', 6 - #t[2]) .. t[2]
end

-- epoch returns the present epoch. It is made of the clock, which is above all that were
-- lost.
local function epoch(key)
  local n = number(key)
  if not n then
    n = clock()
    redis.call('SET', key, n)
  end
  return n
end
