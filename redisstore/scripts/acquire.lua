-- Reads the value again and, unless there is one that the caller has not seen,
-- takes the lease.
--
-- KEYS[1] value   KEYS[2] lease
-- ARGV[1] claim of the caller: "t" .. token, 16 bytes .. try, 4 bytes
-- ARGV[2] how long the lease lasts, ms
-- ARGV[3] "" if the caller has seen no value, else "=" .. its first ARGV[4] bytes
-- ARGV[4] length of a mark
-- ARGV[5] owner of the caller: "@" .. printable bytes other than a space .. " ", or ""
--
-- Returns {1, value}           hit: a value that the caller has not seen
--         {2}                  won
--         {2, record}          won; the last load failed, and that is remembered
--         {3, ms}              held by another token, for so long
--         {4, ms, record}      the last load failed; the record blocks for so long
--
-- The lease's key holds, with a deadline in both cases,
--   the claim, the owner, and behind it what the lease has been won over: nothing, or how
--     long the record of a failure had left, ms, ":" and the record;
--   "f", how long the record stays after it has stopped to block, ms, ":" and the record.
--
-- The GET of the lease comes after that of the value, and both keys are declared:
-- a tracking connection is armed on both of them when the answer is 3 or 4.

--include behind

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' then
  value = '' -- of a foreign type: there, and readable as nothing
end
if value and (ARGV[3] == '' or '=' .. string.sub(value, 1, tonumber(ARGV[4])) ~= ARGV[3]) then
  return {1, value}
end

-- later says whether the claim that is there is that of a later try than the
-- caller's. Bytes are compared by hand: Lua compares strings in the server's locale.
local function later(claim)
  for i = 18, 21 do
    local a, b = string.byte(claim, i), string.byte(ARGV[1], i)
    if a ~= b then
      return a > b
    end
  end
  return false
end

local left, record, mine = nil, nil, false
local lease = redis.pcall('GET', KEYS[2])
if type(lease) == 'string' then
  -- A key without a deadline or of another form is not ours and holds up nobody.
  local ms = redis.call('PTTL', KEYS[2])
  local kind = string.sub(lease, 1, 1)
  if ms >= 0 and kind == 't' and #lease >= 21 then
    if string.sub(lease, 1, 17) ~= string.sub(ARGV[1], 1, 17) then
      return {3, ms}
    end
    mine = true
    left, record = behind(lease)
  elseif ms >= 0 and kind == 'f' then
    left, record = string.match(lease, '^f(%d+):(.*)$')
    if left and ms > tonumber(left) then
      return {4, ms - tonumber(left), record}
    end
    left = math.max(ms, 1)
  end
end

-- Who comes behind a later try of its own flight changes nothing. It gets a lease under
-- which nothing can be done: the claim is not its own.
if not (mine and later(lease)) then
  local over = record and left .. ':' .. record or ''
  redis.call('SET', KEYS[2], ARGV[1] .. ARGV[5] .. over, 'PX', ARGV[2])
end
if record then
  return {2, record}
end
return {2}
