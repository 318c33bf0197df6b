-- ARGV: identity, incarnation. Gives how many entries were thrown away.
local m = load(false)
if not m then return 0 end
call('DEL', unpack(KEYS))
return m.live + #m.trimmed / 6
