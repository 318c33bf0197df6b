-- ARGV: identity, incarnation, epoch, run (first sequence I6, first id H, count H).
local m = load(false)
if not m or fenced(m, ARGV[3]) then return 0 end
local first, _, count = unpack_at('<I6HH', ARGV[4])
if count == 0 or first + count <= floor(m) then return 0 end
local place = 1
for at = 1, #m.runs, 10 do
  local start = unpack_at('<I6HH', m.runs, at)
  if start == first then return 0 end
  if start < first then place = at + 10 end
end
m.runs = sub(m.runs, 1, place - 1) .. ARGV[4] .. sub(m.runs, place)
m.exact = ZERO
save(m)
return 1
