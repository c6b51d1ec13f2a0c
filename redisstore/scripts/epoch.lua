-- Reads the epoch of a cache's name, and makes it if there is none.
--
-- KEYS[1] epoch
--
-- Returns the epoch, in decimal.

--include numbers

return epoch(KEYS[1])
