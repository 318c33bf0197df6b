-- ARGV: identity, incarnation, limit, source, places (offset I8, index I4, of each), entries.
-- Gives first sequence, skipped, depth, dropped; or 0 when there is no such queue.
local m = load(false)
if not m then return 0 end
local limit, source, places, count = tonumber(ARGV[3]), ARGV[4], ARGV[5], #ARGV - 5
local mark
for at = 1, #m.marks, 24 do
  if sub(m.marks, at, at + 11) == source then mark = at break end
end
local skipped = 0
if mark then
  local offset, index = unpack_at('<I8I4', m.marks, mark + 12)
  while skipped < count do
    local o, i = unpack_at('<I8I4', places, skipped * 12 + 1)
    if o > offset or (o == offset and i > index) then break end
    skipped = skipped + 1
  end
end
local first = m.next
if skipped == count then return { first, skipped, m.live, 0 } end

local last = source .. sub(places, count * 12 - 11)
if mark then
  m.marks = sub(m.marks, 1, mark - 1) .. last .. sub(m.marks, mark + 24)
else
  m.marks = m.marks .. last
end
m.next, m.live = m.next + count - skipped, m.live + count - skipped
if m.live <= limit and #m.early == 0 and count < 1000 then
  call('RPUSH', KEYS[2], unpack(ARGV, 6 + skipped))
  save(m)
  return { first, skipped, m.live, 0 }
end
