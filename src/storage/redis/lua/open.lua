-- ARGV: identity, incarnation, epoch, term, the id itself when the identity is not it, whether a
-- rollback may still be replayed. Gives 1, thrown away, trimmed for good, next, sent below, depth,
-- whether the last word was known, runs; or 0 when fenced.
local m = load(true)
local epoch, term, thrown = ARGV[3], ARGV[4], 0
if m and fenced(m, epoch) then return { 0 } end
if not m or m.incarnation ~= ARGV[2] then
  if m then
    thrown = m.live + #m.trimmed / 6
    call('DEL', KEYS[2], KEYS[3])
  end
  m = { incarnation = ARGV[2], epoch = epoch, exact = ZERO, next = 1, base = 1, told = 0, live = 0,
    parked = 0, id = ARGV[1], marks = '', runs = '', early = '', trimmed = '' }
  if ARGV[5] ~= '' then call('SET', KEYS[4], ARGV[5]) end
end
local lost = #m.trimmed / 6
local exact = m.exact == term
local runs, reserved, below = '', 0, m.parked > 0 and parked(m) or {}
for at = 1, #m.runs, 10 do
  local start, _, count = unpack_at('<I6HH', m.runs, at)
  local stop = start + count
  reserved = math.max(reserved, stop)
  local owed = stop > m.next
  for _, seq in ipairs(below) do
    owed = owed or (seq >= start and seq < stop)
  end
  local from, to = math.max(start, m.base), math.min(stop, m.next)
  if not owed and from < to then
    owed = dead(m) == 0
    if not owed then
      for _, entry in ipairs(call('LRANGE', KEYS[2], from - m.base, to - m.base - 1)) do
        if entry ~= '' then owed = true break end
      end
    end
  end
  if owed then runs = runs .. sub(m.runs, at, at + 9) end
end
-- Entries that a lost master had may come back: then they were sent, too.
if ARGV[6] ~= '1' then reserved = math.min(reserved, m.next) end
local sent = m.told
if not exact then sent = math.max(sent, reserved) end
-- From here on the connection may send what it likes within its runs.
m.runs, m.trimmed, m.exact = runs, '', ZERO
save(m)
return { 1, thrown, lost, m.next, sent, m.live, exact and 1 or 0, runs }
