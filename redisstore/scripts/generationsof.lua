-- Shows the epoch of a cache's name and generations of its tags, and makes none.
--
-- KEYS[1] epoch   KEYS[2] and on: generations
--
-- Returns all of them as they are, "" for what is not there or no string.

local found = {}
for i = 1, #KEYS do
  local n = redis.pcall('GET', KEYS[i])
  found[i] = type(n) == 'string' and n or ''
end
return found
