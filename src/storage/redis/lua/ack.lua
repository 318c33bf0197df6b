-- ARGV: identity, incarnation, epoch, sent below, term when this is the last word (empty: nothing is
-- said of what was sent), sequences (I6, rising). Gives the depth, or -1.
local m = load(false)
if not m or fenced(m, ARGV[3]) then return -1 end
local seqs, below = ARGV[6], tonumber(ARGV[4])
if below > m.told then m.told = below end
if ARGV[5] ~= '' then m.exact = ARGV[5] end
-- Mostly the oldest are acknowledged, and nothing is missing between them.
local many = #seqs / 6
if m.parked == 0 and m.live == m.next - m.base and many <= m.live and #m.trimmed == 0 and
  (many == 0 or (unpack_at('<I6', seqs) == m.base and
    unpack_at('<I6', seqs, #seqs - 5) == m.base + many - 1)) then
  if many > 0 then
    call('LTRIM', KEYS[2], many, -1)
    m.base, m.live = m.base + many, m.live - many
  end
  while #m.runs > 0 do
    local start, _, count = unpack_at('<I6HH', m.runs)
    if start + count > m.base then break end
    m.runs = sub(m.runs, 11)
  end
  save(m)
  return m.live
end
