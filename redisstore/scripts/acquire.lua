-- Reads the value again and, unless there is one that the caller has not seen,
-- takes the lease.
--
-- KEYS[1] value   KEYS[2] lease
-- ARGV[1] "t" .. token of the caller
-- ARGV[2] how long the lease lasts, ms
-- ARGV[3] "" if the caller has seen no value, else "=" .. its first ARGV[4] bytes
-- ARGV[4] length of a mark
--
-- Returns {1, value}           hit: a value that the caller has not seen
--         {2}                  won
--         {3, ms}              held by another token, for so long
--         {4, ms, record}      the last load failed; the record lasts for so long
--
-- The GET of the lease comes after that of the value, and both keys are declared:
-- a tracking connection is armed on both of them when the answer is 3 or 4.

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  value = '' -- of a foreign type: there, and readable as nothing
end
if value and (ARGV[3] == '' or '=' .. string.sub(value, 1, tonumber(ARGV[4])) ~= ARGV[3]) then
  return {1, value}
end

local lease = redis.pcall('GET', KEYS[2])
if type(lease) == 'string' and lease ~= ARGV[1] then
  -- A key without a deadline or of another form is not ours and holds up nobody.
  local left = redis.call('PTTL', KEYS[2])
  local kind = string.sub(lease, 1, 1)
  if left >= 0 and kind == 't' then
    return {3, left}
  end
  if left >= 0 and kind == 'f' then
    return {4, left, string.sub(lease, 2)}
  end
end
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {2}
