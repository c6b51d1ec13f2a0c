-- Makes a write that is replicated and leaves nothing, for WAIT to wait for.
--
-- KEYS[1] a key that nobody reads
--
-- Returns 1.
--
-- The deletion comes first: after one write that may free memory, a full server lets
-- the script write too. What changes nothing is not replicated, so there is a SET.

redis.call('DEL', KEYS[1])
redis.call('SET', KEYS[1], '')
redis.call('DEL', KEYS[1])
return 1
