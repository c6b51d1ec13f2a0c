-- Says which of the commands that a store on Redis needs its user may not run on a key of
-- its own. It runs none of them.
--
-- ARGV[1] a key as the store makes them. It is not declared, as nobody reads or writes it:
-- so any node of a cluster can be asked, whatever the user may do with it.
--
-- Returns the names of the commands that are not allowed.

local key, refused = ARGV[1], {}
local commands = {
  {'get', key}, {'set', key, ''}, {'del', key}, {'exists', key}, {'pttl', key}, {'pexpire', key, '1'},
  {'getrange', key, '0', '0'}, {'setrange', key, '0', ''}, {'evalsha', '', '1', key}, {'getex', key}, {'time'},
  {'hello'}, {'ping'}, {'info'}, {'wait', '0', '1'}, {'client', 'tracking', 'off'},
}
for _, command in ipairs(commands) do
  if not redis.acl_check_cmd(unpack(command)) then
    local name = command[1]
    if name == 'client' then
      name = 'client|tracking'
    end
    refused[#refused + 1] = name
  end
end
return refused
