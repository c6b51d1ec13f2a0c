-- Removes the value and ends every lease and failure record of its key.
--
-- KEYS[1] value   KEYS[2] lease
--
-- Returns 1.
--
-- The value is written before it is deleted, so that whoever has read its absence
-- hears of it: the deletion of an absent key pushes nothing. The lease goes first:
-- after one write that frees memory, a full server lets the script write too.
--
-- A tracking connection gets exactly one push for the value: the EXISTS arms it, and
-- the first write uses that up.

redis.call('EXISTS', KEYS[1])
redis.call('DEL', KEYS[2])
redis.call('SET', KEYS[1], '')
redis.call('DEL', KEYS[1])
return 1
