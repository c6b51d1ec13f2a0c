-- behind reads what a lease's key holds behind the claim and the owner: how long the
-- record of a failure had left when the lease was won, ms, and the record; nil if it was
-- won over none. The owner is for people who look: nothing is decided by it. Records of
-- versions that wrote none are read as well.
local function behind(lease)
  local rest = string.sub(lease, 22)
  return string.match(string.match(rest, '^@[^ ]* (.*)$') or rest, '^(%d+):(.*)$')
end
