-- ARGV: identity, incarnation, epoch, sent below, term when this is the last word, sequences (I6,
-- rising). Gives the depth, or -1.
local m = load(false)
if not m or fenced(m, ARGV[3]) then return -1 end
local seqs, head, holes = ARGV[6], 0, dead(m) > 0
local base, stop = m.base, m.next
for at = 1, #seqs, 6 do
  local seq = unpack_at('<I6', seqs, at)
  local place = seq - base
  if place < 0 then
    if m.parked > 0 and call('HDEL', KEYS[3], seq) == 1 then
      m.parked, m.live = m.parked - 1, m.live - 1
    else
      local known = find(m.trimmed, seq)
      if known then m.trimmed = without(m.trimmed, known, 6) end
    end
  elseif seq < stop then
    if place == head and not holes then
      head, m.live = head + 1, m.live - 1
    elseif place >= head and call('LINDEX', KEYS[2], place) ~= '' then
      call('LSET', KEYS[2], place, '')
      m.live = m.live - 1
    else
      local known = find(m.trimmed, seq)
      if known then m.trimmed = without(m.trimmed, known, 6) end
    end
  end
end
if head > 0 then
  call('LTRIM', KEYS[2], head, -1)
  m.base = base + head
end
behead(m)

-- A few that are never acknowledged must not keep the list from letting go of the others.
if dead(m) > 256 + 16 * (m.live - m.parked) then
  for at, entry in ipairs(call('LRANGE', KEYS[2], 0, -1)) do
    if entry ~= '' then call('HSET', KEYS[3], m.base + at - 1, entry) end
  end
  call('DEL', KEYS[2])
  m.base, m.parked = m.next, m.live
end

local below = tonumber(ARGV[4])
if below > m.told then m.told = below end
m.exact = ARGV[5]
if #m.runs > 0 then
  local lowest = floor(m)
  while #m.runs > 0 do
    local start, _, count = unpack_at('<I6HH', m.runs)
    if start + count > lowest then break end
    m.runs = sub(m.runs, 11)
  end
end
save(m)
return m.live
