-- newer says whether the stored value is of a newer row version than mine. What has
-- no row version ("") is never older: the mark of a row that has been deleted must
-- replace the row. Bytes are compared by hand: Lua compares strings in the server's
-- locale.
local function newer(key, mine, offset, begin, length)
  if mine == '' then
    return false
  end
  local head = redis.pcall('GETRANGE', key, 0, length - 1)
  if type(head) ~= 'string' or #head ~= length or string.sub(head, 1, #begin) ~= begin then
    return false
  end
  for i = 1, 8 do
    local a, b = string.byte(head, offset + i), string.byte(mine, i)
    if a ~= b then
      return a > b
    end
  end
  return false
end
