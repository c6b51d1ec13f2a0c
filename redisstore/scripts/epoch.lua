-- Reads the epoch of a cache's name, and makes it if there is none.
--
-- KEYS[1] epoch
--
-- Returns the epoch, in decimal. The PTTL arms the connection on it.

--include numbers

local present = epoch(KEYS[1])
redis.call('PTTL', KEYS[1])
return present
