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

-- What PUBREC came for before a master was lost comes back with its mark.
if #m.early > 0 then
  for at = 6 + skipped, #ARGV do
    local known = find(m.early, first + at - 6 - skipped)
    if known then
      ARGV[at] = flagged(ARGV[at])
      m.early = without(m.early, known, 6)
    end
  end
end
for at = 6 + skipped, #ARGV, 1000 do
  call('RPUSH', KEYS[2], unpack(ARGV, at, math.min(at + 999, #ARGV)))
end
local last = source .. sub(places, count * 12 - 11)
if mark then
  m.marks = sub(m.marks, 1, mark - 1) .. last .. sub(m.marks, mark + 24)
else
  m.marks = m.marks .. last
end
m.next, m.live = m.next + count - skipped, m.live + count - skipped

local dropped = 0
-- One that may be in flight counts only if it is never acknowledged.
local function trimmed(seq)
  m.live = m.live - 1
  for at = 1, #m.runs, 10 do
    local start, _, length = unpack_at('<I6HH', m.runs, at)
    if seq >= start and seq < start + length then
      m.trimmed = m.trimmed .. pack('<I6', seq)
      if #m.trimmed > 6 * 4096 then
        m.trimmed = sub(m.trimmed, 7)
        dropped = dropped + 1
      end
      return
    end
  end
  dropped = dropped + 1
end
if m.live > limit then
  for _, seq in ipairs(parked(m)) do
    if m.live <= limit then break end
    if not is_received(call('HGET', KEYS[3], seq)) then
      call('HDEL', KEYS[3], seq)
      m.parked = m.parked - 1
      trimmed(seq)
    end
  end
  local at, length, kept, gone = 0, m.next - m.base, false, 0
  while m.live > limit and at < length do
    for _, entry in ipairs(call('LRANGE', KEYS[2], at, at + math.min(m.live - limit, 1000) - 1)) do
      if entry ~= '' then
        if is_received(entry) then
          kept = true
        else
          if kept then call('LSET', KEYS[2], at, '') end
          trimmed(m.base + at)
        end
      end
      at = at + 1
      if not kept then gone = at end
    end
  end
  if gone > 0 then
    call('LTRIM', KEYS[2], gone, -1)
    m.base = m.base + gone
  end
  behead(m)
end
save(m)
return { first, skipped, m.live, dropped }
